package app

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/engine"
	registryapi "github.com/parley-chat/parley/server/registry/api"
)

// environ is an environment in the form of os.Environ.
func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// A flag goes before the environment, the environment before the default.
func TestConfigPrecedence(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want Config
	}{
		{name: "defaults", want: Config{Listen: DefaultListen, DataDir: DefaultDataDir, Kafka: DefaultKafka, Registry: registryapi.DefaultListen}},
		{
			name: "environment",
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1", "PARLEY_REGISTRY_LISTEN": "127.0.0.1:3", "PARLEY_LOG_FORMAT": "json",
				"PARLEY_MAX_CHATS_PER_USER": "7",
			},
			want: Config{Listen: "[::1]:0", DataDir: "/d", Kafka: "127.0.0.1:1", Registry: "127.0.0.1:3", LogJSON: true, MaxChats: 7},
		},
		{
			name: "flags",
			args: []string{"--listen", ":7", "-data-dir=/f", "--kafka-listen=127.0.0.1:2", "--registry-listen=127.0.0.1:4", "--log-format=text"},
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1", "PARLEY_REGISTRY_LISTEN": "127.0.0.1:3", "PARLEY_LOG_FORMAT": "json",
			},
			want: Config{Listen: ":7", DataDir: "/f", Kafka: "127.0.0.1:2", Registry: "127.0.0.1:4"},
		},
		{
			name: "a flag repairs a bad environment", args: []string{"--listen", "localhost:65535"}, env: map[string]string{"PARLEY_LISTEN": "x"},
			want: Config{Listen: "localhost:65535", DataDir: DefaultDataDir, Kafka: DefaultKafka, Registry: registryapi.DefaultListen},
		},
		{
			name: "an empty variable is none", env: map[string]string{"PARLEY_DATA_DIR": "", "PARLEY_LISTEN": ""},
			want: Config{Listen: DefaultListen, DataDir: DefaultDataDir, Kafka: DefaultKafka, Registry: registryapi.DefaultListen},
		},
		{
			name: "token", args: []string{"--data-dir", "/d", "token", "bob_1"},
			want: Config{Listen: DefaultListen, DataDir: "/d", Kafka: DefaultKafka, Registry: registryapi.DefaultListen, command: "token", user: "bob_1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.args, environ(tt.env), io.Discard)
			got.Engine, got.LinkListen = engine.Config{}, "" // see TestDistributedConfig
			got.OpsListen, got.ops = "", opsClient{}         // see TestOperators
			got.WebOrigins, got.Demo = nil, false            // see TestCORS and TestDemoUsersOff
			got.Edge = edgeConfig{}                          // see the tests of the edge
			if tt.want.MaxChats == 0 {
				tt.want.MaxChats = 10_000
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("%+v, %v", got, err)
			}
		})
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
	} {
		var wrong errUsage
		_, err := parse(args, nil, io.Discard)
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", args, err)
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
	c, err := parse(good, environ(env), io.Discard)
	if err != nil || !c.Engine.Distributed() || c.Engine.RedisPassword != "hunter2" || c.LinkListen != DefaultLink {
		t.Fatalf("%+v %v", c, err)
	}
	for says, args := range map[string][]string{
		"store must be":               {"--store", "sqlite"},
		"need store dynamodb":         {"--redis", "redis://h"},
		"needs redis":                 {"--store", "dynamodb", "--key-file", key},
		"needs key-file":              good[:4],
		"link-listen must be":         append(good, "--link-listen", "8081"),
		"link-address must be":        append(good, "--link-address", "h"),
		"link-address is needed":      append(good, "--link-listen", "0.0.0.0:1"),
		"link-address is needed ":     append(good, "--link-listen", ":1"),
		"link-address must be one":    append(good, "--link-address", ":1"),
		"link-address must be one ":   append(good, "--link-address", "[::]:1"),
		"link-address must be one a":  append(good, "--link-address", "h:0"),
		"go together":                 append(good, "--link-ca", key),
		"redis must be redis://":      {"--store", "dynamodb", "--redis", "redis://u:hunter2@", "--key-file", key},
		"no certificate in it":        append(good, "--redis-ca", key),
		"kafka-tls must be":           append(good, "--kafka-brokers", "h:1", "--kafka-tls", "yes"),
		"need kafka-tls on":           append(good, "--kafka-brokers", "h:1", "--kafka-ca", key),
		"kafka-key go together":       append(good, "--kafka-brokers", "h:1", "--kafka-tls", "on", "--kafka-cert", key),
		"PARLEY_REDIS_PASSWORD":       {"--store", "dynamodb", "--redis", "redis://u:hunter2@h", "--key-file", key},
		"parameters cluster, master":  {"--store", "dynamodb", "--redis", "redis://h?clusterr=true", "--key-file", key},
		"cluster or master, not both": {"--store", "dynamodb", "--redis", "redis://h?cluster=true&master=m", "--key-file", key},
		"needs master":                {"--store", "dynamodb", "--redis", "redis://h?sentinel_user=m", "--key-file", key},
		"no numbered databases":       {"--store", "dynamodb", "--redis", "redis://h,i/3", "--key-file", key},
		"a broker must be":            append(good, "--kafka-brokers", "h"),
		"PLAIN sends the password":    append(good, "--kafka-brokers", "h:1", "--kafka-sasl", "PLAIN", "--kafka-user", "u"),
		"must be at most 64 letter":   append(good, "--dynamodb-prefix", "a b"),
	} {
		var wrong errUsage
		_, err := parse(args, environ(env), io.Discard)
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), strings.TrimSpace(says)) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
