package ops_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

type nobody struct{}

// ProfileChanged implements people.Hub.
func (nobody) ProfileChanged(string, int64, []string) {}

// Dead letters and the event store are second copies of what people wrote. A deletion
// reaches both: who asks for the content gets it before, and not after (S-45).
func TestSec_S_45_DeletionReachesDeadLetters(t *testing.T) {
	r := opstest.New(t, nil)
	ctx := t.Context()
	deadLetters := client(t, r)
	value := testkit.Value(r.Key.IssueOperator("ada", time.Now(), time.Minute))(t)
	events := opsv1connect.NewEventServiceClient(&http.Client{Transport: token{value, http.DefaultTransport}},
		"http://"+r.Addr)
	id := r.Chat(3) // of alice
	deadLetter := r.DeadLetter(opstest.Group, r.Event(id, 7), "permanent: bad")
	shows := func() (deadLetterShows, storeShows bool) {
		t.Helper()
		l := testkit.Value(deadLetters.GetDeadLetter(ctx, &opsv1.GetDeadLetterRequest{Id: deadLetter, Content: true}))(t)
		list := testkit.Value(events.ListEvents(ctx, &opsv1.ListEventsRequest{ChatId: id, Content: true}))(t)
		return bytes.Contains(testkit.Value(proto.Marshal(l))(t), []byte(opstest.Secret)),
			bytes.Contains(testkit.Value(proto.Marshal(list))(t), []byte(opstest.Secret))
	}
	if deadLetter, stored := shows(); !deadLetter || !stored {
		t.Fatalf("before the deletion content is shown by the letter: %v, by the event store: %v", deadLetter, stored)
	}
	accounts := people.New(people.Config{Store: r.Store, Clock: time.Now, NewID: chat.NewID, Chats: r.Chats,
		Hub: nobody{}})
	testkit.Must(t, accounts.Delete(ctx, "alice", "alice"))
	if deadLetter, stored := shows(); deadLetter || stored {
		t.Errorf("after the deletion content is shown by the letter: %v, by the event store: %v", deadLetter, stored)
	}
}

// A dead letter that cannot be read as an event shows nothing of a deleted account either, and
// says so; that of somebody else is shown if its author can be determined.
func TestUnreadableDeadLettersOfDeletedAccounts(t *testing.T) {
	r := opstest.New(t, nil)
	ctx := t.Context()
	deadLetters := client(t, r)
	id := r.Chat(3)
	deadLetter := func(n int, headers ...kafka.Header) string {
		record := r.Event(id, n)
		record.Value, record.Headers = bytes.Clone(record.Value), headers
		record.Value[4] ^= 0x7f // another schema, which nobody has
		return r.DeadLetter(opstest.Group, record, "permanent: bad")
	}
	anonymous := deadLetter(7)
	named := deadLetter(8, kafka.Header{Key: kafka.HeaderEventType, Value: []byte(event.TypeMessagePersisted)})
	shows := func(deadLetter string) (shown bool, problem string) {
		t.Helper()
		l := testkit.Value(deadLetters.GetDeadLetter(ctx, &opsv1.GetDeadLetterRequest{Id: deadLetter, Content: true}))(t)
		return bytes.Contains(testkit.Value(proto.Marshal(l))(t), []byte(opstest.Secret)), l.GetProblem()
	}
	if shown, problem := shows(anonymous); shown || !strings.Contains(problem, "may be of a deleted account") {
		t.Errorf("of nobody who is known: %v, %q", shown, problem)
	}
	if shown, problem := shows(named); !shown || strings.Contains(problem, "deleted account") {
		t.Errorf("before the deletion: %v, %q", shown, problem)
	}
	accounts := people.New(people.Config{Store: r.Store, Clock: time.Now, NewID: chat.NewID, Chats: r.Chats,
		Hub: nobody{}})
	testkit.Must(t, accounts.Delete(ctx, "alice", "alice"))
	for _, l := range []string{anonymous, named} {
		if shown, problem := shows(l); shown || !strings.Contains(problem, "may be of a deleted account") {
			t.Errorf("after the deletion: %v, %q", shown, problem)
		}
	}
}
