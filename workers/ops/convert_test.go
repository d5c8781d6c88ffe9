package ops

import (
	"strings"
	"testing"
	"unicode/utf8"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/deadletter/encoding"
)

// States, outcomes and classes have one spelling, in the packages behind the API and in the
// API: a value that one side lacks fails here.
func TestOneSpelling(t *testing.T) {
	statuses := []deadletter.Status{deadletter.Open, deadletter.Running, deadletter.Redriven, deadletter.Discarded}
	for _, s := range statuses {
		if v := statusTo(s); v == 0 || statusOf(v) != s {
			t.Errorf("status %q is %v", s, v)
		}
	}
	outcomes := []deadletter.Outcome{deadletter.Done, deadletter.Failed, deadletter.Behind, deadletter.NoHandler,
		deadletter.Taken}
	for _, o := range outcomes {
		if v := outcomeTo(o); v == 0 {
			t.Errorf("outcome %q is none of the API", o)
		}
	}
	if len(opsv1.DeadLetterStatus_name) != len(statuses)+1 || len(opsv1.DeadLetterOutcome_name) != len(outcomes)+1 {
		t.Error("the API has a status or an outcome that package deadletter does not have")
	}
	if len(opsv1.FailureClass_name) != len(eventv1.FailureClass_name) {
		t.Error("the API and the dead letters have different classes")
	}
	for n, name := range opsv1.FailureClass_name {
		if eventv1.FailureClass_name[n] != name {
			t.Errorf("class %d is %s in the API and %s in dead letters", n, name, eventv1.FailureClass_name[n])
		}
	}
	for _, c := range []consume.Class{consume.Unknown, consume.Permanent, consume.Downstream, consume.Authoritative,
		consume.Fatal} {
		if v := encoding.Class(c.String()); v == 0 || !strings.HasSuffix(v.String(), "_"+strings.ToUpper(c.String())) {
			t.Errorf("class %q is %v in dead letters", c, v)
		}
	}
	if v := encoding.Class(consume.Ignored.String()); v != 0 { // such a record is no dead letter
		t.Errorf("ignored is %v", v)
	}
}

func TestTruncate(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", "abcdefgh": "abcde", "abcdé": "abcd?", "a\xffb": "a?b",
		"\xff\xff\xff": "?"} {
		if got := truncate(in, 5); got != want || len(got) > 5 || !utf8.ValidString(got) {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
}
