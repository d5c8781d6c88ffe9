//go:build !windows

package app_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// secured is engines with TLS, users and rights, and the settings files of an
// installation on them.
type secured struct {
	*installation
	password, redisPassword string
	certificates            string // directory
	settings                map[string]string
}

func newSecured(t *testing.T) *secured {
	env := map[string]string{}
	for _, name := range []string{"PARLEY_TEST_SECURED_KAFKA", "PARLEY_TEST_SECURED_REDIS", "PARLEY_TEST_SECURED_DIR",
		"PARLEY_TEST_SECURED_PASSWORD", "PARLEY_TEST_DYNAMODB"} {
		if env[name] = os.Getenv(name); env[name] == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	id := strings.ToLower(rand.Text()[:10])
	s := &secured{
		installation: &installation{t: t, keys: id + ":", kafka: env["PARLEY_TEST_SECURED_KAFKA"], dir: t.TempDir()},
		password:     env["PARLEY_TEST_SECURED_PASSWORD"], redisPassword: rand.Text(),
		certificates: env["PARLEY_TEST_SECURED_DIR"],
	}
	key := filepath.Join(s.dir, "key.pem")
	if out, err := exec.Command("openssl", "genpkey", "-algorithm", "ed25519", "-out", key).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(file string) string { return filepath.Join(s.certificates, file) }
	s.settings = map[string]string{
		"PARLEY_STORE": "dynamodb", "PARLEY_DYNAMODB_ENDPOINT": env["PARLEY_TEST_DYNAMODB"],
		"PARLEY_DYNAMODB_PREFIX": id + "_",
		"PARLEY_KAFKA_BROKERS":   s.kafka, "PARLEY_KAFKA_TLS": "on", "PARLEY_KAFKA_CA": of("ca.pem"),
		"PARLEY_KAFKA_SASL": "SCRAM-SHA-512",
		"PARLEY_KAFKA_USER": "parley-nobody", "PARLEY_KAFKA_PASSWORD": s.password, "PARLEY_REPLICATION": "1",
		"PARLEY_REDIS":        strings.Replace(env["PARLEY_TEST_SECURED_REDIS"], "admin@", id+"@", 1),
		"PARLEY_REDIS_CA":     of("ca.pem"),
		"PARLEY_REDIS_PREFIX": s.keys, "PARLEY_REDIS_PASSWORD": s.redisPassword,
		"PARLEY_KEY_FILE": key, "PARLEY_LINK_CA": of("ca.pem"), "PARLEY_LINK_CERT": of("server.pem"),
		"PARLEY_LINK_KEY": of("server.key"),
	}
	s.flags = []string{"--config", s.file("server", nil)}
	s.command("tables", "apply")
	s.command("schemas", "register")
	s.command("--kafka-user", "admin", "kafka", "acl", "apply")
	s.command("--kafka-user", "parley-operator", "kafka", "acl", "verify")
	s.command("--kafka-user", "parley-operator", "kafka", "apply")
	s.command("--kafka-user", "parley-operator", "kafka", "verify")
	kafkatest.Forget(t, s.kafka, oneAlone, s.as(t, "admin")...)
	// The user of Redis has exactly the rights that are printed.
	o, err := redis.ParseURL(env["PARLEY_TEST_SECURED_REDIS"])
	if err != nil {
		t.Fatal(err)
	}
	o.Password, o.TLSConfig = s.password, s.trust(t)
	s.redis = redis.NewClient(o)
	t.Cleanup(func() {
		s.flush()
		_ = s.redis.Do(context.Background(), "ACL", "DELUSER", id, id+"-little").Err()
		_ = s.redis.Close()
	})
	for user, less := range map[string]string{id: "", id + "-little": "+eval"} {
		rule := []any{"ACL", "SETUSER", user, "on", ">" + s.redisPassword}
		for _, word := range strings.Fields(s.command("redis", "acl")) {
			if word != less {
				rule = append(rule, word)
			}
		}
		if err := s.redis.Do(t.Context(), rule...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// file writes a file of settings with some of them changed.
func (s *secured) file(name string, changes map[string]string) string {
	s.t.Helper()
	var text strings.Builder
	for k, v := range s.settings {
		if c, ok := changes[k]; ok {
			v = c
		}
		fmt.Fprintf(&text, "%s=%s\n", k, v)
	}
	for k, v := range changes {
		if _, ok := s.settings[k]; !ok {
			fmt.Fprintf(&text, "%s=%s\n", k, v)
		}
	}
	path := filepath.Join(s.dir, name+".env")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *secured) trust(t *testing.T) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.certificates, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// as is how a user of Kafka gets in.
func (s *secured) as(t *testing.T, user string) []kafka.Option {
	c := kafka.Cluster{Brokers: []string{s.kafka}, TLS: s.trust(t), Mechanism: "SCRAM-SHA-512", User: user,
		Password: s.password}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c.Options()
}

// shows reports the secrets that a text shows.
func (s *secured) shows(text string, tokens ...string) (found []string) {
	key, err := os.ReadFile(s.settings["PARLEY_KEY_FILE"])
	if err != nil {
		s.t.Fatal(err)
	}
	for name, secret := range map[string]string{"Kafka's password": s.password, "Redis's password": s.redisPassword,
		"the key": strings.Split(string(key), "\n")[1], "a wrong password": "hunter2"} {
		if strings.Contains(text, secret) {
			found = append(found, name)
		}
	}
	for _, token := range tokens {
		if strings.Contains(text, token[strings.LastIndexByte(token, '.')+1:]) {
			found = append(found, "a token")
		}
	}
	return found
}

// TestSecured: two servers, whose links have TLS, a relay and a fanout on a Kafka and a
// Redis that let nobody in who may not, each process as a user of its own with the declared
// rights and no others (K-020, S-41, S-43). No log shows a secret (S-38).
func TestSecured(t *testing.T) {
	s := newSecured(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range s.servers {
		s.servers[i] = &member{binary: binary(t),
			args: []string{"--config", s.file("server", nil), "--listen", "127.0.0.1:0", "--link-listen", "127.0.0.1:0",
				"--metrics-listen", "127.0.0.1:0"}}
		s.start(s.servers[i])
	}
	for i, job := range []string{"relay", "fanout"} {
		s.workers[i] = &member{binary: workersBinary(t),
			args: []string{"--config", s.file(job, map[string]string{"PARLEY_KAFKA_USER": "parley-" + job}), "run", job}}
		s.start(s.workers[i])
	}
	for _, addr := range []string{s.servers[0].metricsListener(t), s.workers[0].metricsAddr()} {
		if days := scrape(t, addr, `parley_certificate_days_left{file="`+s.settings["PARLEY_LINK_CERT"]+`"}`); days <= 0 {
			t.Errorf("the certificate of links is valid for %v days", days)
		}
	}
	bob, alice := s.user("bob", 0), s.user("alice", 1)
	created, err := call(ctx, alice.chats.CreateChat,
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	chatID := created.GetOverview().GetChat().GetChatId()
	stream, err := bob.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	shown := make(chan string, 64)
	go func() {
		defer close(shown)
		for stream.Receive() {
			for _, f := range stream.Msg().GetFrames() {
				if text := f.GetMessage().GetContent(); text != "" || f.GetHeartbeat().GetToken() != "" {
					shown <- text
				}
			}
		}
	}()
	<-shown // the stream is open
	for i := range 10 {
		text := fmt.Sprint("canary ", i)
		if _, err := call(ctx, alice.messages.SendMessage,
			&messagev1.SendMessageRequest{ChatId: chatID, Content: text, ClientMessageId: uuid.NewString()}); err != nil {
			t.Fatal(err)
		}
		if got := <-shown; got != text {
			t.Fatalf("bob was shown %q, not %q: %v", got, text, stream.Err())
		}
	}
	// Operators' processes may look: every message is there.
	ops := s.as(t, "parley-ops")
	published := func() (n int) {
		spans, err := lag.Spans(ctx, s.kafka, kafka.MessagesPersisted, ops...)
		if err != nil {
			t.Fatal(err)
		}
		err = lag.Read(ctx, s.kafka, spans, func(r *kafka.Record) error {
			if string(r.Key) == chatID {
				n++
			}
			return nil
		}, ops...)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	until(ctx, t, "10 messages are on Kafka", func() bool { return published() == 10 })
	until(ctx, t, "fanout has read them", func() bool {
		n, err := s.workers[1].metric(ctx, telemetry.FanoutHandled)
		return err == nil && n >= 10
	})
	if _, err := lag.OfGroup(ctx, s.kafka, "fanout-workers", ops...); err != nil {
		t.Errorf("operators cannot look at the group: %v", err)
	}
	// Nobody else writes events, and who writes them cannot read.
	for _, user := range []string{"parley-fanout", "parley-ops", "parley-operator", "parley-nobody"} {
		c, err := kafka.NewProducer(s.kafka, s.as(t, user)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := kafka.Publish(ctx, c,
			&kafka.Record{Topic: kafka.MessagesPersisted, Key: []byte(chatID), Value: []byte("forged")}); err == nil ||
			!strings.Contains(err.Error(), "AUTHORIZATION_FAILED") {
			t.Errorf("%s writes events: %v", user, err)
		}
		c.Close()
	}
	for _, user := range []string{"parley-relay", "parley-operator", "parley-nobody"} {
		err := lag.Read(ctx, s.kafka, []lag.Span{{Partition: kafka.Partition{Topic: kafka.MessagesPersisted}, To: 1}},
			func(*kafka.Record) error { return errors.New("read") }, s.as(t, user)...)
		if err == nil || !strings.Contains(err.Error(), "AUTHORIZATION_FAILED") {
			t.Errorf("%s reads events: %v", user, err)
		}
	}
	tokens := []string{s.token("alice"), s.token("bob")}
	for _, m := range []*member{s.servers[0], s.servers[1], s.workers[0], s.workers[1]} {
		text := m.log.String()
		if found := s.shows(text, tokens...); len(found) > 0 || strings.Contains(text, "canary") ||
			strings.Contains(text, "eyJ") {
			t.Errorf("%v in what is logged: %s", found, text)
		}
		if strings.Contains(text, "level=ERROR") || strings.Contains(text, "link: a server does not take") {
			t.Errorf("all is not well: %s", text)
		}
	}
}

// TestMistakes starts the programs with one thing wrong each: they end with one line that
// says what to check, and no secret in it.
func TestMistakes(t *testing.T) {
	s := newSecured(t)
	id := strings.TrimSuffix(s.keys, ":")
	other := filepath.Join(s.certificates, "other-ca.pem")
	http := strings.TrimPrefix(s.settings["PARLEY_DYNAMODB_ENDPOINT"], "http://")
	open := filepath.Join(s.dir, "open.pem")
	none := filepath.Join(s.dir, "none.pem")
	for path, mode := range map[string]os.FileMode{open: 0o644, none: 0o600} {
		if err := os.WriteFile(path, []byte("hunter2\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	server := []string{"--listen", "127.0.0.1:0", "--link-listen", "127.0.0.1:0"}
	relay, fanout, verify := []string{"run", "relay"}, []string{"run", "fanout"}, []string{"kafka", "verify"}
	type row struct {
		says    string
		code    int
		args    []string
		changes map[string]string
	}
	of := func(list ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(list); i += 2 {
			m["PARLEY_"+list[i]] = list[i+1]
		}
		return m
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	_ = workersBinary(t)
	// Most of the time goes by with waiting for what does not answer.
	room := make(chan struct{}, 12)
	var all sync.WaitGroup
	for _, tt := range []row{
		{`refuses user "parley-relay": kafka-user or PARLEY_KAFKA_PASSWORD is wrong`, 1, relay,
			of("KAFKA_USER", "parley-relay", "KAFKA_PASSWORD", "hunter2")},
		{`refuses user "parley-relay"`, 1, verify,
			of("KAFKA_USER", "parley-relay", "KAFKA_PASSWORD", "hunter2", "KAFKA_SASL", "PLAIN")},
		{"does not offer the SASL mechanism SCRAM-SHA-256", 1, relay, of("KAFKA_SASL", "SCRAM-SHA-256")},
		{"does it want a user (kafka-sasl)?", 1, relay, of("KAFKA_SASL", "", "KAFKA_USER", "")},
		{"not signed by an authority in kafka-ca", 1, relay, of("KAFKA_CA", other)},
		{"not signed by an authority in kafka-ca", 1, verify, of("KAFKA_CA", "")},
		{"does it want TLS (kafka-tls on)", 1, relay, of("KAFKA_TLS", "off", "KAFKA_CA", "")},
		{"does not speak TLS: set kafka-tls to off", 1, relay, of("KAFKA_BROKERS", http)},
		{"speaks HTTP: is kafka-brokers right?", 1, verify, of("KAFKA_BROKERS", http, "KAFKA_TLS", "off", "KAFKA_CA", "")},
		{"no broker of 127.0.0.1:1 can be reached", 1, relay, of("KAFKA_BROKERS", "127.0.0.1:1")},
		{"no broker of 127.0.0.1:1 can be reached", 1, verify, of("KAFKA_BROKERS", "127.0.0.1:1")},
		{`user "parley-nobody" lacks Write and DescribeConfigs on topic messages.persisted`, 1, relay, nil},
		{`user "parley-fanout" lacks Write on topic messages.persisted`, 1, relay, of("KAFKA_USER", "parley-fanout")},
		{"Write on transactional id parley-relay-*; `workers kafka acl` prints", 1, relay,
			of("KAFKA_USER", "parley-fanout")},
		{`user "parley-relay" lacks Read on topic messages.persisted`, 1, fanout, of("KAFKA_USER", "parley-relay")},
		{"Read on group fanout-workers; `workers kafka acl` prints", 1, fanout, of("KAFKA_USER", "parley-relay")},
		{"TOPIC_AUTHORIZATION_FAILED", 1, verify, nil},
		{"may not read ACLs: it needs Describe on the cluster", 1, []string{"kafka", "acl", "verify"}, nil},
		{"kafka-ca: open /nowhere: no such file", 2, relay, of("KAFKA_CA", "/nowhere")},

		{"refuses the user or the password: look at redis and PARLEY_REDIS_PASSWORD", 1, server,
			of("REDIS_PASSWORD", "hunter2")},
		{"wants a user and a password", 1, server,
			of("REDIS", "rediss://"+strings.SplitAfter(s.settings["PARLEY_REDIS"], "@")[1], "REDIS_PASSWORD", "")},
		{"not signed by an authority in redis-ca", 1, server, of("REDIS_CA", other)},
		{"does it want TLS (rediss://)", 1, server,
			of("REDIS", strings.Replace(s.settings["PARLEY_REDIS"], "rediss", "redis", 1))},
		{"redis: 127.0.0.1:1 cannot be reached", 1, server, of("REDIS", "redis://127.0.0.1:1")},
		{"'eval' command); `workers redis acl` prints what it needs", 1, server,
			of("REDIS", strings.Replace(s.settings["PARLEY_REDIS"], id+"@", id+"-little@", 1))},
		{"`workers redis acl` prints what it needs", 1, server, of("REDIS_PREFIX", "another:")},
		{"'eval' command)", 1, fanout,
			of("KAFKA_USER", "parley-fanout", "REDIS", strings.Replace(s.settings["PARLEY_REDIS"], id+"@", id+"-little@", 1))},
		{"redis-ca: open /nowhere: no such file", 2, server, of("REDIS_CA", "/nowhere")},

		{"dynamo: http://127.0.0.1:1 cannot be reached", 1, server, of("DYNAMODB_ENDPOINT", "http://127.0.0.1:1")},
		{"dynamo: http://127.0.0.1:1 cannot be reached", 1, []string{"tables", "verify"},
			of("DYNAMODB_ENDPOINT", "http://127.0.0.1:1")},
		{"dynamo: no credentials: AWS_ACCESS_KEY_ID", 1, []string{"tables", "apply"},
			of("DYNAMODB_ENDPOINT", "", "DYNAMODB_REGION", "eu-west-1")},
		{"dynamo: no region: give one", 1, server, of("DYNAMODB_ENDPOINT", "")},
		{"dynamo: no credentials: AWS_ACCESS_KEY_ID", 1, server, of("DYNAMODB_ENDPOINT", "", "DYNAMODB_REGION", "eu-west-1")},
		{"dynamo: no_*: a table is missing; make them with: workers tables apply", 1, server, of("DYNAMODB_PREFIX", "no_")},
		{"dynamo: no_*: a table is missing; make them with: workers tables apply", 1, relay, of("DYNAMODB_PREFIX", "no_")},

		{"/nowhere: no such file", 1, server, of("KEY_FILE", "/nowhere")},
		{"others may read it", 1, server, of("KEY_FILE", open)},
		{"not a PEM private key", 1, server, of("KEY_FILE", none)},
		{"needs key-file", 2, server, of("KEY_FILE", "")},
		{"go together", 2, server, of("LINK_KEY", "")},
		{"link-ca: open /nowhere: no such file", 2, server, of("LINK_CA", "/nowhere")},
		{taken.Addr().String() + " is in use", 1, append(slices.Clone(server), "--link-listen", taken.Addr().String()), nil},
		{"there is no setting PARLEY_KAFKA_PASWORD", 2, server, of("KAFKA_PASWORD", "hunter2")},
		{"relay-slots must be 1 to 64, not \"0\" (", 2, relay, of("RELAY_SLOTS", "0")},
	} {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			program := workersBinary(t)
			if tt.args[0] == "--listen" {
				program = binary(t)
			}
			cmd := exec.CommandContext(ctx, program,
				append([]string{"--config", s.file(rand.Text(), tt.changes)}, tt.args...)...)
			// Nothing of this machine's may stand in for what is missing.
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "AWS_EC2_METADATA_DISABLED=true"}
			var out, logs output
			cmd.Stdout, cmd.Stderr = &out, &logs
			_ = cmd.Run()
			text := logs.String()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || strings.Count(text, "\n") != 1 ||
				!strings.Contains(text, tt.says) {
				t.Errorf("exit code %d, want %d and one line with %q:\n%s", code, tt.code, tt.says, text)
			}
			if found := s.shows(out.String() + text); len(found) > 0 {
				t.Errorf("%v in %s", found, text)
			}
		})
	}
	all.Wait()
}
