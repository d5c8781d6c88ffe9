package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	registryapi "github.com/parley-chat/parley/server/registry/api"
)

// environ is an environment in the form of os.Environ.
func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// parse returns the configuration that a command line and an environment make, or what is
// said about them.
func parse(t *testing.T, args []string, env map[string]string) (got Config, says string) {
	t.Helper()
	var out, failure strings.Builder
	root := &cobra.Command{Use: "server", Args: cobra.ArbitraryArgs}
	p := &commandLine{Program: cmdline.New(config.Server, root, "parley"), environ: environ(env), stdout: &out,
		stderr: &failure}
	root.RunE = func(*cobra.Command, []string) (err error) {
		got, err = p.config()
		return err
	}
	code := p.Run(t.Context(), args, &out, &failure)
	if (code == cmdline.ExitOK) != (failure.Len() == 0) || code != cmdline.ExitOK &&
		(code != cmdline.ExitUsage || strings.Count(failure.String(), "\n") != 1) {
		t.Errorf("%v: exit code %d, %q", args, code, failure.String())
	}
	return got, failure.String()
}

// A flag goes before the environment, the environment before the default.
func TestConfigPrecedence(t *testing.T) {
	type values struct {
		listen, dataDir, kafka, registry, format string
		chats                                    int
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want values
	}{
		{name: "defaults", want: values{DefaultListen, DefaultDataDir, DefaultKafka, registryapi.DefaultListen, "text",
			10_000}},
		{
			name: "environment",
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1",
				"PARLEY_REGISTRY_LISTEN": "127.0.0.1:3", "PARLEY_LOG_FORMAT": "json",
				"PARLEY_MAX_CHATS_PER_USER": "7",
			},
			want: values{"[::1]:0", "/d", "127.0.0.1:1", "127.0.0.1:3", "json", 7},
		},
		{
			name: "flags",
			args: []string{"--listen", ":7", "-data-dir=/f", "--kafka-listen=127.0.0.1:2", "--registry-listen=127.0.0.1:4",
				"--log-format=text"},
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1",
				"PARLEY_REGISTRY_LISTEN": "127.0.0.1:3", "PARLEY_LOG_FORMAT": "json",
			},
			want: values{":7", "/f", "127.0.0.1:2", "127.0.0.1:4", "text", 10_000},
		},
		{
			name: "a flag repairs a bad environment", args: []string{"--listen", "localhost:65535"},
			env:  map[string]string{"PARLEY_LISTEN": "x"},
			want: values{"localhost:65535", DefaultDataDir, DefaultKafka, registryapi.DefaultListen, "text", 10_000},
		},
		{
			name: "an empty variable is none", env: map[string]string{"PARLEY_DATA_DIR": "", "PARLEY_LISTEN": ""},
			want: values{DefaultListen, DefaultDataDir, DefaultKafka, registryapi.DefaultListen, "text", 10_000},
		},
		{
			name: "a flag with one dash and a space", args: []string{"-data-dir", "/d"},
			want: values{DefaultListen, "/d", DefaultKafka, registryapi.DefaultListen, "text", 10_000},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, says := parse(t, tt.args, tt.env)
			mode := c.Backend.Embedded
			if says != "" || mode == nil || c.distributed() {
				t.Fatalf("%+v, %s", c, says)
			}
			if got := (values{c.Listen, mode.DataDir, mode.Kafka, c.Registry.Listen, c.LogFormat,
				c.MaxChatsPerUser}); got != tt.want || mode.KafkaFallback != (tt.want.kafka == DefaultKafka) {
				t.Errorf("%+v, not %+v", got, tt.want)
			}
		})
	}
}

// The bound on the Kafka port's connections reaches the broker.
func TestKafkaConnections(t *testing.T) {
	for want, args := range map[int][]string{
		256: nil, 4: {"--kafka-connections", "4"}, 4096: {"--kafka-connections=4096"},
	} {
		if c, says := parse(t, args, nil); says != "" || c.Backend.Embedded.KafkaConnections != want {
			t.Errorf("%v: %d connections, %s", args, c.Backend.Embedded.KafkaConnections, says)
		}
	}
	for _, bad := range []string{"3", "0", "-1", "4097", "many"} {
		_, says := parse(t, []string{"--kafka-connections", bad}, nil)
		if !strings.Contains(says, "kafka-connections must be") {
			t.Errorf("%s: %q", bad, says)
		}
	}
}

func TestBadUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"host:port, not \"8080\"":         {"--listen", "8080"},
		"host:port, not \"a:-1\"":         {"--listen", "a:-1"},
		"host:port, not \"::1:80\"":       {"--listen", "::1:80"},
		"host:port, not \"h:65536\"":      {"--listen", "h:65536"},
		"host:port, not \"h:\"":           {"--kafka-listen", "h:"},
		"registry-listen must be":         {"--registry-listen", "h"},
		"one user id":                     {"token", "a", "b"},
		"1 to 64 bytes of printable":      {"token", "a/b"},
		"not defined: -listn":             {"--listn", "x"},
		"flag needs an argument: -listen": {"--listen"},
		"flags go before the command":     {"token", "--data-dir", "x", "bob"},
		"unknown command \"dance\"":       {"dance"},
		"check takes --repair":            {"check", "--force"},
		"check takes --repair or one":     {"check", "now", "then"},
	} {
		var out, failure strings.Builder
		code := Run(t.Context(), args, nil, &out, &failure)
		if code != cmdline.ExitUsage || out.Len() > 0 || !strings.Contains(failure.String(), says) ||
			strings.Count(failure.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out.String(), failure.String())
		}
	}
}

// What belongs to many processes is asked for before anything is opened, and no password
// is shown.
func TestDistributedConfig(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := []string{"--store", "dynamodb", "--redis", "redis://parley@h:1,i:2", "--key-file", key}
	env := map[string]string{"PARLEY_REDIS_PASSWORD": "hunter2", "PARLEY_KAFKA_PASSWORD": "hunter3"}
	c, failure := parse(t, good, env)
	if failure != "" || !c.distributed() || c.Backend.Distributed.Redis.Password != "hunter2" ||
		c.Links.Listen != DefaultLink {
		t.Fatalf("%+v %s", c, failure)
	}
	for says, args := range map[string][]string{
		"store must be":              {"--store", "sqlite"},
		"need store dynamodb":        {"--redis", "redis://h"},
		"needs redis":                {"--store", "dynamodb", "--key-file", key},
		"needs key-file":             good[:4],
		"link-listen must be":        append(good, "--link-listen", "8081"),
		"link-address must be":       append(good, "--link-address", "h"),
		"link-address is needed":     append(good, "--link-listen", "0.0.0.0:1"),
		"link-address is needed ":    append(good, "--link-listen", ":1"),
		"link-address must be one":   append(good, "--link-address", ":1"),
		"link-address must be one ":  append(good, "--link-address", "[::]:1"),
		"link-address must be one a": append(good, "--link-address", "h:0"),
		"go together":                append(good, "--link-ca", key),
		"redis must be redis://":     {"--store", "dynamodb", "--redis", "redis://u:hunter2@", "--key-file", key},
		"no certificate in it":       append(good, "--redis-ca", key),
		"kafka-tls must be":          append(good, "--kafka-brokers", "h:1", "--kafka-tls", "yes"),
		"need kafka-tls on":          append(good, "--kafka-brokers", "h:1", "--kafka-ca", key),
		"kafka-key go together":      append(good, "--kafka-brokers", "h:1", "--kafka-tls", "on", "--kafka-cert", key),
		"PARLEY_REDIS_PASSWORD":      {"--store", "dynamodb", "--redis", "redis://u:hunter2@h", "--key-file", key},
		"parameters cluster, master": {"--store", "dynamodb", "--redis", "redis://h?clusterr=true", "--key-file", key},
		"cluster or master, not both": {"--store", "dynamodb", "--redis", "redis://h?cluster=true&master=m", "--key-file",
			key},
		"needs master":              {"--store", "dynamodb", "--redis", "redis://h?sentinel_user=m", "--key-file", key},
		"no numbered databases":     {"--store", "dynamodb", "--redis", "redis://h,i/3", "--key-file", key},
		"a broker must be":          append(good, "--kafka-brokers", "h"),
		"PLAIN sends the password":  append(good, "--kafka-brokers", "h:1", "--kafka-sasl", "PLAIN", "--kafka-user", "u"),
		"must be at most 64 letter": append(good, "--dynamodb-prefix", "a b"),
	} {
		if _, failure := parse(t, args, env); !strings.Contains(failure, strings.TrimSpace(says)) ||
			strings.Contains(failure, "hunter") {
			t.Errorf("%v: %s", args, failure)
		}
	}
}
