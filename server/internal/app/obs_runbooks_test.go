package app_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// runbookSteps are the commands of a page, by numbered step.
func runbookSteps(t *testing.T, page string) (steps [][]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "runbooks", page))
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(b), "\n## ")
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch fenced := strings.TrimSpace(line); {
		case regexp.MustCompile(`^\d+\. `).MatchString(line):
			steps = append(steps, nil)
		case strings.HasPrefix(fenced, "```"):
			inside = !inside
		case inside && len(steps) > 0:
			steps[len(steps)-1] = append(steps[len(steps)-1], fenced)
		}
	}
	return steps
}

// kafkaTool runs the commands of Apache Kafka by the names of its scripts.
type kafkaTool struct {
	t   *testing.T
	bin string
}

// newKafkaTool makes scripts of the names that Kafka's have, of its classes.
func newKafkaTool(t *testing.T, libs string) kafkaTool {
	t.Helper()
	k := kafkaTool{t, t.TempDir()}
	for name, class := range map[string]string{
		"kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
		"kafka-console-consumer.sh":    "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"kafka-console-producer.sh":    "org.apache.kafka.tools.ConsoleProducer",
		"kafka-topics.sh":              "org.apache.kafka.tools.TopicCommand",
		"kafka-get-offsets.sh":         "org.apache.kafka.tools.GetOffsetShell",
		"kafka-consumer-groups.sh":     "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	} {
		script := fmt.Sprintf("#!/bin/sh\nexec java -Xmx256m -Dlog4j2.level=ERROR -cp '%s/*' %s \"$@\"\n", libs, class)
		if err := os.WriteFile(filepath.Join(k.bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// shell runs a line as an operator types it.
func (k kafkaTool) shell(dir, line string) string {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), "sh", "-c", line)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+k.bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// drillBook executes the commands of a page on an embedded server: those of workers by the
// server's own, those that scrape on its address. It returns what each step said. Commands
// on topics and processes are for installations.
func drillBook(
	t *testing.T, page string, operate func(args ...string) string, addr string, replace map[string]string,
) (said []string) {
	t.Helper()
	scrape := regexp.MustCompile(`^curl -s http://\$WORKERS/metrics \| grep -E '(.*)'$`)
	for _, lines := range runbookSteps(t, page) {
		text := ""
		for _, line := range lines {
			for from, to := range replace {
				line = strings.ReplaceAll(line, from, to)
			}
			if m := scrape.FindStringSubmatch(line); m != nil {
				_, body := get(t, "http://"+addr+"/metrics")
				text += strings.Join(regexp.MustCompile(`(?m)`+m[1]+`.*$`).FindAllString(body, -1), "\n")
				continue
			}
			args, ok := strings.CutPrefix(line, "workers ")
			if strings.HasPrefix(line, "server deadletters ") { // TestTopicDeadLetterCommands has what they act on
				continue
			}
			if !ok {
				t.Fatalf("%s: nobody knows how to run %q", page, line)
			}
			if words := words(args); words[0] != "kafka" && words[0] != "run" {
				text += operate(words...)
			}
		}
		said = append(said, text)
	}
	return said
}

// words are those of a command line; quotes hold some together.
func words(line string) (list []string) {
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		list = append(list, m[1]+m[2])
	}
	return list
}

// K-168 and K-169: the runbooks of a lagging group and of dead letters, executed line by
// line on a running server with a hot chat and a record that cannot be read.
func TestRunbooksOnTheEmbeddedServer(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	bad := unreadable(t, dir)
	greeting, logs, _ := greeted(t, "127.0.0.1:0", dir)
	ops := opsAddress.FindStringSubmatch(logs.String())[1]
	addr := listening.FindStringSubmatch(greeting)[1]
	operate := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := run(t.Context(), map[string]string{"PARLEY_OPERATOR": "ada"},
			append([]string{"--data-dir", dir, "--ops-address", ops}, args...)...)
		// 3: something was left; of a dead letter that is driven again that is the dead letter.
		if code != 0 && (code != 3 || !slices.Contains(args, "redrive")) {
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		return stdout + stderr
	}
	deadLetter := fmt.Sprintf("fanout-workers/messages.persisted/9/%d", bad.Offset)
	testkit.Eventually(t, "fanout has made a dead letter of "+deadLetter, func() bool {
		return strings.Contains(operate("deadletters", "list"), deadLetter)
	})
	usual(t, addr, token(t, dir, "alice"))
	movesOf(t.Context(), t, ofEvents, addr)

	lag := drillBook(t, "consumer-lag.md", operate, addr, nil)
	if len(lag) != 5 || !strings.Contains(lag[0], "fanout-workers is Stable") ||
		!strings.Contains(lag[3], "parley_fanout_handled_total") ||
		!strings.Contains(lag[3], "parley_fanout_oldest_seconds") {
		t.Errorf("%q", lag)
	}
	deadLetters := drillBook(t, "dead-letters.md", operate, addr,
		map[string]string{"fanout-workers/messages.persisted/9/4711": deadLetter})
	for i, want := range []string{"no schema id", "", "", "1 discarded"} {
		if i >= len(deadLetters) || !strings.Contains(deadLetters[i], want) {
			t.Errorf("step %d does not say %q: %q", i+1, want, deadLetters)
		}
	}
	if !strings.Contains(deadLetters[0], "permanent") || !strings.Contains(deadLetters[3], "1 failed again") {
		t.Errorf("%q", deadLetters)
	}
	if out := operate("deadletters", "count"); strings.Contains(out, "permanent") {
		t.Errorf("it is not over: %s", out)
	}
}
