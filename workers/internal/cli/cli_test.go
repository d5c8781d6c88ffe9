package cli

import (
	"bytes"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// environ is an environment in the form of os.Environ.
func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

func run(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, environ(env), &out, &errs)
	return code, out.String(), errs.String()
}

// Wrong use is reported in one line, before anything is connected to, without a password.
func TestUsage(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(key, []byte("x"), 0o600))
	env := map[string]string{"PARLEY_KAFKA_PASSWORD": "hunter2", "PARLEY_REDIS_PASSWORD": "hunter3"}
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"nothing":              {nil, "no command"},
		"unknown flag":         {[]string{"--nope"}, "-nope"},
		"unknown command":      {[]string{"dance"}, `unknown command "dance"`},
		"no job":               {[]string{"run"}, "run needs jobs"},
		"unknown job":          {[]string{"run", "dance"}, `unknown job "dance"`},
		"relay without Kafka":  {[]string{"run", "relay"}, "relay needs kafka-brokers"},
		"fanout without Redis": {[]string{"--kafka-brokers", "h:1", "run", "fanout"}, "fanout needs redis and key-file"},
		"fanout without a key": {[]string{"--kafka-brokers", "h:1", "--redis", "redis://h", "run", "fanout"},
			"fanout needs redis and key-file"},
		"half of the registry's": {[]string{"--registry-cert", key, "run", "registry"},
			"registry-cert and registry-key go together"},
		"schemas dance":         {[]string{"schemas", "dance"}, "schemas needs register or verify"},
		"half of a certificate": {[]string{"--link-cert", key, "run", "reconcile"}, "go together"},
		"embedded":              {[]string{"--store", "embedded", "run", "reconcile"}, "store must be dynamodb"},
		"bad listen":            {[]string{"--listen", "x", "run", "reconcile"}, "listen must be"},
		"no slots":              {[]string{"--relay-slots", "0", "run", "reconcile"}, "relay-slots must be 1 to 64"},
		"too many slots":        {[]string{"--relay-slots", "65", "run", "reconcile"}, "relay-slots must be 1 to 64"},
		"bad replication":       {[]string{"--replication", "0", "kafka", "apply"}, "replication must be"},
		"bad format":            {[]string{"--log-format", "xml", "run", "reconcile"}, "log-format must be"},
		"topics of nobody":      {[]string{"kafka", "apply"}, "no brokers"},
		"kafka dance":           {[]string{"kafka", "dance"}, "kafka needs apply"},
		"topics dance":          {[]string{"topics", "dance"}, "topics needs apply"},
		"tables dance":          {[]string{"tables"}, "tables needs apply"},
		"redis":                 {[]string{"redis"}, "redis acl"},
		"SASL without a user": {[]string{"--kafka-brokers", "h:1", "--kafka-sasl", "SCRAM-SHA-256", "kafka", "verify"},
			"needs a user"},
		"restore without Redis": {[]string{"--kafka-brokers", "h:1", "restore"}, "restore needs redis and kafka-brokers"},
		"restore without Kafka": {[]string{"--redis", "redis://h", "restore"}, "restore needs redis and kafka-brokers"},
		"restore of something":  {[]string{"restore", "users"}, `restore takes no arguments, not "users"`},
		"bad Redis":             {[]string{"--redis", "redis://u:hunter4@", "run", "reconcile"}, "redis must be"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, env, tt.args...)
			if code != cmdline.ExitUsage || stdout != "" || !strings.Contains(stderr, tt.says) ||
				strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "hunter") {
				t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}

// Every command says what it is for, in each form in which people ask, whatever else is
// wrong with the settings.
func TestHelp(t *testing.T) {
	wrong := map[string]string{"PARLEY_TYPO": "1", "PARLEY_STORE": "x"}
	for command, want := range map[string][]string{
		"":    {"run JOB", "-kafka-brokers", "PARLEY_REDIS_PASSWORD", "-relay-slots", "deadletters list"},
		"run": {"run JOB", "relay ", "fanout ", "reconcile ", "registry ", "ops "},
		"kafka": {"kafka apply\n", "kafka verify\n", "kafka terraform\n", "kafka capacity\n", "kafka acl\n",
			"kafka messages\n",
			"kafka acl apply\n", "kafka acl verify\n", "ends with 3"},
		"kafka apply": {"kafka apply\n"}, "kafka verify": {"ends with 3", "brokers whose own settings are weak"},
		"kafka acl": {"kafka acl apply\n"}, "kafka acl verify": {"kafka acl verify\n", "ends with 3"},
		"topics verify": {"ends with 3"},
		"tables":        {"tables apply\n", "tables verify\n", "tables terraform\n"},
		"schemas":       {"schemas register\n", "schemas verify\n"},
		"tables verify": {"ends with 3"}, "redis": {"redis acl"}, "redis acl": {"rules of the user"},
		"restore":     {"restore [--execute]", "--accept-torn"},
		"run relay":   {"run JOB"},
		"deadletters": {"redrive"}, "deadletters list": {"page-token"}, "replay": {"execute"}, "groups": {"hot-keys"},
		"operators": {"NAME"},
	} {
		words := strings.Fields(command)
		for _, line := range [][]string{append(slices.Clone(words), "--help"), append(slices.Clone(words), "-h"),
			append([]string{"help"}, words...)} {
			code, stdout, stderr := run(t, wrong, line...)
			if code != cmdline.ExitOK || stderr != "" {
				t.Errorf("%q: exit code %d, %q", line, code, stderr)
			}
			for _, says := range want {
				if !strings.Contains(stdout, says) {
					t.Errorf("%q lacks %s: %s", line, says, stdout)
				}
			}
		}
	}
	for _, line := range []string{"version", "--version"} {
		if code, stdout, stderr := run(t, wrong, line); code != cmdline.ExitOK || stderr != "" ||
			!strings.HasPrefix(stdout, "workers ") || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, %q", line, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := run(t, nil, "help", "dance"); code != cmdline.ExitUsage || stdout != "" ||
		!strings.Contains(stderr, `unknown command "dance"`) {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

// The commands on Kafka still have the name that they had before topics were something else.
// It is not listed, and says which one is now.
func TestTopicsIsKafka(t *testing.T) {
	for _, line := range []string{"capacity", "acl"} {
		_, want, _ := run(t, nil, "kafka", line)
		code, stdout, stderr := run(t, nil, "topics", line)
		if code != cmdline.ExitOK || stdout != want || want == "" ||
			stderr != "workers: topics is now kafka: workers kafka "+line+"\n" {
			t.Errorf("%s: exit code %d, %q, %q", line, code, stdout, stderr)
		}
	}
	if _, stdout, _ := run(t, nil, "--help"); strings.Contains(stdout, "topics apply") ||
		!strings.Contains(stdout, "kafka apply") {
		t.Error(stdout)
	}
}

// What needs no connection is printed without one.
func TestPrinted(t *testing.T) {
	for want, args := range map[string][]string{
		`"messages.persisted"`:                  {"kafka", "terraform"},
		`resource "aws_dynamodb_table"`:         {"tables", "terraform"},
		"~mine:*":                               {"--redis-prefix", "mine:", "redis", "acl"},
		`"parley_messages_persisted"`:           {"kafka", "terraform"},
		"| messages.persisted | 64 |":           {"kafka", "capacity"},
		"prevent_destroy = true":                {"tables", "terraform"},
		"-@all":                                 {"redis", "acl"},
		"replication_factor = var.parley_topic": {"kafka", "terraform"},
	} {
		code, stdout, stderr := run(t, nil, args...)
		if code != cmdline.ExitOK || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("%v: exit code %d, %q, lacks %s", args, code, stderr, want)
		}
	}
}

// Tables that are missing are differences; those that apply made are none.
func TestTables(t *testing.T) {
	endpoint := os.Getenv("PARLEY_TEST_DYNAMODB")
	if endpoint == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	flags := []string{"--dynamodb-endpoint", endpoint, "--dynamodb-prefix", "cli" + rand.Text()[:8] + "_"}
	for i, tt := range []struct {
		verb, says string
		code       int
	}{{"verify", "", exitDiffer}, {"apply", "", cmdline.ExitOK}, {"verify", "tables are as declared", cmdline.ExitOK},
		{"apply", "tables are as declared", cmdline.ExitOK}} {
		code, stdout, stderr := run(t, nil, append(flags, "tables", tt.verb)...)
		if code != tt.code || stderr != "" || stdout == "" || !strings.Contains(stdout, tt.says) {
			t.Fatalf("step %d, %s: exit code %d, %q, %q", i, tt.verb, code, stdout, stderr)
		}
	}
	// Without Kafka there is still something to run.
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer busy.Close()
	if code, _, stderr := run(t, nil,
		append(flags, "--listen", busy.Addr().String(), "run", "reconcile")...); code != cmdline.ExitFailed ||
		strings.Count(stderr, "\n") != 1 {
		t.Errorf("a port in use: exit code %d, %q", code, stderr)
	}
}

// K-017, K-019, K-032: workers do not start on a cluster without the declared topics, and
// do not make them either; nor without Redis, where they need it.
func TestRunNeedsItsEngines(t *testing.T) {
	endpoint := os.Getenv("PARLEY_TEST_DYNAMODB")
	if endpoint == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	testkit.Must(t, err)
	defer cluster.Close()
	key := filepath.Join(t.TempDir(), "key.pem")
	testkit.Must(t, os.WriteFile(key, []byte("x"), 0o600))
	flags := []string{
		"--dynamodb-endpoint", endpoint, "--dynamodb-prefix", "cli" + rand.Text()[:8] + "_", "--replication", "1",
		"--kafka-brokers", cluster.ListenAddrs()[0], "--redis", "redis://127.0.0.1:1", "--key-file", key,
	}
	for i, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run", "relay"}, cmdline.ExitFailed, "a table is missing; make them with: workers tables apply"},
		{[]string{"tables", "apply"}, cmdline.ExitOK, ""},
		{[]string{"run", "relay"}, cmdline.ExitFailed, "messages.persisted: is missing"},
		{[]string{"kafka", "verify"}, exitDiffer, "messages.persisted: is missing"},
		{[]string{"kafka", "apply"}, cmdline.ExitOK, "messages.persisted: created with 64 partitions"},
		{[]string{"kafka", "verify"}, cmdline.ExitOK, "as declared"},
		{[]string{"run", "fanout"}, cmdline.ExitFailed,
			"register what this version publishes with: workers schemas register"},
		{[]string{"schemas", "verify"}, exitDiffer, "is not registered as it is here"},
		{[]string{"schemas", "register"}, cmdline.ExitOK, "dead_letters-parley.event.v1.DeadLetter: id "},
		{[]string{"schemas", "verify"}, cmdline.ExitOK, "dead_letters-parley.event.v1.DeadLetter: id "},
		{[]string{"run", "fanout"}, cmdline.ExitFailed, "not a PEM private key"},
	} {
		code, stdout, stderr := run(t, nil, append(slices.Clone(flags), tt.args...)...)
		if code != tt.code || !strings.Contains(stdout+stderr, tt.says) {
			t.Fatalf("step %d, %v: exit code %d, %q, %q", i, tt.args, code, stdout, stderr)
		}
	}
}

// The README speaks of commands that there are.
func TestReadmeCommands(t *testing.T) {
	text, err := os.ReadFile("../../../server/deploy/README.md")
	testkit.Must(t, err)
	lines := regexp.MustCompile("(?m)(?:^|\\./|`)workers (?:--[a-z-]+ \\S+ )*([a-z]+(?: [a-z]+)?)").FindAllStringSubmatch(
		string(text), -1)
	if len(lines) < 10 {
		t.Fatalf("found %q", lines)
	}
	for _, line := range lines {
		if code, _, stderr := run(t, nil, append([]string{"help"}, strings.Fields(line[1])...)...); code != cmdline.ExitOK {
			t.Errorf("%s: %s", line[0], stderr)
		}
	}
}
