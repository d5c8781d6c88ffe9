package app

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// A flag goes before the environment, the environment before the default.
func TestConfigPrecedence(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want Config
	}{
		{name: "defaults", want: Config{Listen: DefaultListen, DataDir: DefaultDataDir, Kafka: DefaultKafka}},
		{
			name: "environment",
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1", "PARLEY_LOG_FORMAT": "json",
			},
			want: Config{Listen: "[::1]:0", DataDir: "/d", Kafka: "127.0.0.1:1", LogJSON: true},
		},
		{
			name: "flags",
			args: []string{"--listen", ":7", "-data-dir=/f", "--kafka-listen=127.0.0.1:2", "--log-format=text"},
			env: map[string]string{
				"PARLEY_LISTEN": "[::1]:0", "PARLEY_DATA_DIR": "/d", "PARLEY_KAFKA_LISTEN": "127.0.0.1:1", "PARLEY_LOG_FORMAT": "json",
			},
			want: Config{Listen: ":7", DataDir: "/f", Kafka: "127.0.0.1:2"},
		},
		{
			name: "a flag repairs a bad environment", args: []string{"--listen", "localhost:65535"}, env: map[string]string{"PARLEY_LISTEN": "x"},
			want: Config{Listen: "localhost:65535", DataDir: DefaultDataDir, Kafka: DefaultKafka},
		},
		{
			name: "an empty variable is none", env: map[string]string{"PARLEY_DATA_DIR": "", "PARLEY_LISTEN": ""},
			want: Config{Listen: DefaultListen, DataDir: DefaultDataDir, Kafka: DefaultKafka},
		},
		{
			name: "token", args: []string{"--data-dir", "/d", "token", "bob_1"},
			want: Config{Listen: DefaultListen, DataDir: "/d", Kafka: DefaultKafka, command: "token", user: "bob_1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.args, func(k string) string { return tt.env[k] }, io.Discard)
			if err != nil || got != tt.want {
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
		"one user id":                     {"token", "a", "b"},
		"1 to 64 letters, digits":         {"token", "a/b"},
		"not defined: -listn":             {"--listn", "x"},
		"flag needs an argument: -listen": {"--listen"},
	} {
		var wrong errUsage
		_, err := parse(args, func(string) string { return "" }, io.Discard)
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
