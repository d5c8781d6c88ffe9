package app_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka/port"
)

// readerTool is somebody else's tool to read the log with, as .tools/engines fetches it.
func readerTool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skip("not run: " + variable + " is not set")
	}
	return path
}

// message sends one in a chat with bob, whom the server must know, and returns the chat's id.
func message(t *testing.T, addr, alice string) (id string) {
	t.Helper()
	id = chatIDs.FindString(restDo(t, addr, alice, "POST", "/chats",
		`{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["bob"]}`, 201))
	restDo(t, addr, alice, "POST", "/chats/"+id+"/messages", `{"content":"for readers"}`, 201)
	return id
}

// shows repeats a command until it prints a text: the relay needs a moment.
func shows(t *testing.T, text string, command func(ctx context.Context) *exec.Cmd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	until(ctx, t, "the command shows "+text, func() bool {
		out, err := command(ctx).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Contains(string(out), text)
	})
}

// kcat reads a running server's events by the line that the server's own command prints.
func TestKcatReadsTheEmbeddedLog(t *testing.T) {
	kcat := readerTool(t, "PARLEY_TEST_KCAT")
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	id := message(t, p.addr, token(t, dir, "alice"))
	_, stdout, _ := run(t.Context(), nil, "--data-dir", dir, "kafka")
	line := regexp.MustCompile(`kcat .*`).FindString(stdout)
	shows(t, " "+id+" ", func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "sh", "-c", strings.Replace(line, "kcat ", kcat+" ", 1))
	})
}

// consumer is Kafka's console consumer, which prints the keys of a topic's committed records.
func (k kafkaTool) consumer(ctx context.Context, addr, topic string, more ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(k.bin, "kafka-console-consumer.sh"), append([]string{
		"--bootstrap-server", addr, "--topic", topic, "--from-beginning", "--isolation-level", "read_committed",
		"--timeout-ms", "60000",
		"--formatter-property", "print.key=true", "--formatter-property", "print.partition=true",
	}, more...)...)
}

// producer is Kafka's console producer, of lines of a key, "|" and a value.
func (k kafkaTool) producer(ctx context.Context, addr, topic string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(k.bin, "kafka-console-producer.sh"), "--bootstrap-server", addr,
		"--topic", topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=|")
}

// prints starts a command that keeps reading, and ends it once it has printed a text.
func prints(t *testing.T, text string, command func(ctx context.Context) *exec.Cmd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := command(ctx)
	var out output
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for !strings.Contains(out.String(), text) {
		select {
		case err := <-ended:
			if !strings.Contains(out.String(), text) {
				t.Fatalf("%v: it does not print %s: %s", err, text, out.tail(2<<10))
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	cancel()
	<-ended
}

// Kafka's console consumer reads a running server's events with the properties that the
// server's own command prints.
func TestConsoleConsumerReadsTheEmbeddedLog(t *testing.T) {
	tool := newKafkaTool(t, readerTool(t, "PARLEY_TEST_KAFKA_LIBS"))
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	id := message(t, p.addr, token(t, dir, "alice"))
	_, stdout, _ := run(t.Context(), nil, "--data-dir", dir, "kafka")
	c, err := port.Load(dir)
	if err != nil || !strings.Contains(stdout, c.JavaProperties()) {
		t.Fatal(stdout, err)
	}
	properties := filepath.Join(t.TempDir(), "client.properties")
	if err := os.WriteFile(properties, []byte(c.JavaProperties()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"messages.persisted", "chats.created"} {
		prints(t, id, func(ctx context.Context) *exec.Cmd {
			return tool.consumer(ctx, p.kafka, topic, "--command-config", properties)
		})
	}
}

// adminCalls are the calls of testdata/AdminCalls.java. A call that the port does not allow fails with the
// broker's refusal, or in the client, which sends only what is announced; no call ends in a timeout.
const adminCalls = `describeCluster ok
listTopics ok
describeTopics ok
describeConfigs ok
listOffsets ok
listGroups ok
describeGroups ok
listGroupOffsets ok
describeLogDirs UnsupportedVersionException
describeAcls UnsupportedVersionException
listTransactions UnsupportedVersionException
describeProducers UnsupportedVersionException
describeClientQuotas UnsupportedVersionException
describeUserScram UnsupportedVersionException
describeMetadataQuorum UnsupportedVersionException
listReassignments UnsupportedVersionException
electLeaders UnsupportedVersionException
createTopics TopicAuthorizationException
deleteTopics TopicAuthorizationException
createPartitions TopicAuthorizationException
deleteRecords TopicAuthorizationException
alterConfigs TopicAuthorizationException
deleteGroups GroupAuthorizationException
fenceProducers TransactionalIdAuthorizationException
`

// Kafka's own commands describe the log, and each call of Java's admin client has an outcome.
func TestAdminToolsOnTheEmbeddedLog(t *testing.T) {
	libs := readerTool(t, "PARLEY_TEST_KAFKA_LIBS")
	tool := newKafkaTool(t, libs)
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	c, err := port.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "client.properties"), []byte(c.JavaProperties()), 0o600); err != nil {
		t.Fatal(err)
	}
	server := " --bootstrap-server " + p.kafka + " --command-config client.properties "
	for line, want := range map[string]string{
		"kafka-topics.sh" + server + "--describe --topic messages.persisted": "PartitionCount: 64",
		"kafka-get-offsets.sh" + server + "--topic messages.persisted":       "messages.persisted:63:",
		"kafka-consumer-groups.sh" + server + "--describe --all-groups":      "",
		"kafka-consumer-groups.sh" + server + "--group mine --reset-offsets " +
			"--to-earliest --topic messages.persisted --execute": "messages.persisted",
	} {
		if said := tool.shell(work, line); !strings.Contains(said, want) || strings.Contains(said, "Exception") {
			t.Errorf("%s says %s", line, said)
		}
	}
	java, err := filepath.Abs(filepath.Join("testdata", "AdminCalls.java"))
	if err != nil {
		t.Fatal(err)
	}
	out := tool.shell(work, "java -Xmx256m -Dlog4j2.level=OFF -cp '"+libs+"/*' "+java+" client.properties 2>/dev/null")
	if out != adminCalls {
		t.Errorf("the calls of Java's admin client are\n%sand must be\n%s", out, adminCalls)
	}
}
