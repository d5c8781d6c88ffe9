package blackbox

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// adapterVariable makes a process of this test the adapter of the Go client. Its value is a mistake, or empty.
const adapterVariable = "PARLEY_BLACKBOX_ADAPTER"

var built = testkit.Program{Name: "server"}

func TestMain(m *testing.M) {
	if mistake, ok := os.LookupEnv(adapterVariable); ok {
		if err := adapt(os.Stdin, os.Stdout, mistake); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

// attempt is a scenario for the Go client with a mistake, or with none.
type attempt struct{ mistake, scenario, says string }

// run runs attempts beside each other: they mostly wait.
func run(t *testing.T, timeout time.Duration, list []attempt, judge func(attempt, Outcome)) {
	t.Helper()
	server, self := built.Path(t), testkit.Value(os.Executable())(t)
	var running sync.WaitGroup
	for _, a := range list {
		running.Go(func() {
			var report bytes.Buffer
			outcomes, err := Run(t.Context(), Config{
				Server: server, Client: []string{"env", adapterVariable + "=" + a.mistake, self}, Timeout: timeout,
				Only: regexp.MustCompile("^" + regexp.QuoteMeta(a.scenario) + "$"), Out: &report, Log: os.Stderr,
			})
			if err != nil {
				t.Errorf("%s: %v", a.scenario, err)
				return
			}
			t.Log(report.String())
			judge(a, outcomes[0])
		})
	}
	running.Wait()
}

// The Go client passes scenarios of each file. The command conformance runs all of them.
func TestGoClient(t *testing.T) {
	t.Parallel()
	var list []attempt
	for _, name := range []string{
		"first start", "own messages", "350 messages while closed, the token expired", "lost answers", "server restored",
		"removed and added again while offline", "refused message", "sending reads nothing", "client killed with an outbox",
	} {
		list = append(list, attempt{scenario: name})
	}
	run(t, time.Minute, list, func(a attempt, o Outcome) {
		if o.Err != nil || o.NotRun != "" {
			t.Errorf("%s: got %v, not run: %q", a.scenario, o.Err, o.NotRun)
		}
	})
}

// A client with a mistake fails the scenario that is about it, with a message that shows the mistake.
func TestMistakes(t *testing.T) {
	t.Parallel()
	list := []attempt{
		{dropsMessage, "live messages", "19 messages"},
		{showsOutOfOrder, "live messages", "is shown after message"},
		{readsOnSend, "sending reads nothing", "has read up to"},
		{sendsTwice, "lost answers", "twice"},
		{ignoresRemoval, "removed while offline", "not a chat of the user"},
		{countsOwn, "own messages", "unread: got "},
		{forgetsOutbox, "client killed with an outbox", "the store has the messages"},
		{hidesRefusal, "refused message", "NOT_A_MEMBER"},
		{ignoresReadMarks, "read marks", "the server has the read mark"},
	}
	run(t, 10*time.Second, list, func(a attempt, o Outcome) {
		if o.Err == nil || !strings.Contains(o.Err.Error(), a.says) {
			t.Errorf("%s, %s: got %v, want a failure with %q", a.mistake, a.scenario, o.Err, a.says)
		}
	})
}

// The report says that a program does not follow the protocol.
func TestNoClient(t *testing.T) {
	for command, says := range map[string]string{
		"exit 3":                         "exit status 3",
		"echo hello; cat >/dev/null":     "hello",
		"echo '{\"can\":[]}'; sleep 100": "did not answer show",
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			list, err := Run(t.Context(), Config{Server: built.Path(t), Client: []string{"sh", "-c", command},
				Only: regexp.MustCompile("^first start$"), Timeout: time.Second, Out: new(bytes.Buffer)})
			testkit.Must(t, err)
			if list[0].Err == nil || !strings.Contains(list[0].Err.Error(), says) {
				t.Errorf("got %v, want a failure with %q", list[0].Err, says)
			}
		})
	}
}

// Each scenario has a name of its own and says what the user must see.
func TestScenarios(t *testing.T) {
	var names []string
	for _, s := range Scenarios() {
		if s.Must == "" || slices.Contains(names, s.Name) {
			t.Errorf("scenario %q: must be %q, the names before are %q", s.Name, s.Must, names)
		}
		names = append(names, s.Name)
	}
}
