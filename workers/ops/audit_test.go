package ops_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// stream reads a stream to its end.
func stream[T any](s interface {
	Receive() bool
	Err() error
	Msg() *T
}, err error) error {
	for err == nil && s.Receive() {
	}
	if err == nil {
		err = s.Err()
	}
	return err
}

// changing has a call of each RPC that changes something: one that succeeds, if execute
// is true, and what is recorded of its request and result.
func changing(t *testing.T, r *opstest.Fixture, c opsv1connect.OpsServiceClient) map[string]func(execute bool) error {
	// The calls are made in any order, and a dead letter waits for the earlier ones of its chat:
	// these are of two chats.
	deadLetter := func(chatID string, n int) *opsv1.DeadLetterFilter {
		return &opsv1.DeadLetterFilter{Ids: []string{r.DeadLetter(opstest.Group, r.Event(chatID, n), "permanent: bad")}}
	}
	redriven, discarded := deadLetter(chatA, 1), deadLetter("chat_01ARZ3NDEKTSV4RRFFQ69G5FAB", 2)
	id := r.Chat(3)
	none := func(err error) error {
		for _, nothing := range []string{"no such failed row", "there is no migration", "no past version"} {
			if err != nil && strings.Contains(err.Error(), nothing) {
				return nil
			}
		}
		return err
	}
	return map[string]func(bool) error{
		"RedriveDeadLetters": func(execute bool) error {
			s, err := c.RedriveDeadLetters(t.Context(), &opsv1.RedriveDeadLettersRequest{Filter: redriven, Execute: execute})
			return stream(s, err)
		},
		"DiscardDeadLetters": func(execute bool) error {
			s, err := c.DiscardDeadLetters(t.Context(),
				&opsv1.DiscardDeadLettersRequest{Filter: discarded, Execute: execute, Reason: "test data"})
			return stream(s, err)
		},
		"ReplayEvents": func(execute bool) error {
			s, err := c.ReplayEvents(t.Context(), &opsv1.ReplayEventsRequest{ChatIds: []string{id}, Execute: execute})
			return stream(s, err)
		},
		"RepairFailedOutboxRow": func(execute bool) error {
			_, err := c.RepairFailedOutboxRow(t.Context(), &opsv1.RepairFailedOutboxRowRequest{Row: "00/x", Execute: execute})
			return none(err)
		},
		"DropFailedOutboxRow": func(execute bool) error {
			_, err := c.DropFailedOutboxRow(t.Context(),
				&opsv1.DropFailedOutboxRowRequest{Row: "00/x", Reason: "test data", Execute: execute})
			return none(err)
		},
		"MigrateTopic": func(execute bool) error { // it has as many already
			s, err := c.MigrateTopic(t.Context(),
				&opsv1.MigrateTopicRequest{Topic: kafka.ChatsCreated, Partitions: 16, Execute: execute})
			return stream(s, err)
		},
		"AbortTopicMigration": func(execute bool) error {
			_, err := c.AbortTopicMigration(t.Context(), &opsv1.AbortTopicMigrationRequest{Execute: execute})
			return none(err)
		},
		"RetireTopicVersion": func(execute bool) error {
			_, err := c.RetireTopicVersion(t.Context(),
				&opsv1.RetireTopicVersionRequest{Name: kafka.ChatsCreated, Execute: execute})
			return none(err)
		},
	}
}

// Every RPC that changes something leaves its rows, and a new one must be added here. A
// dry run leaves none (S-39).
func TestSec_S_39_ChangesAreRecorded(t *testing.T) {
	r := opstest.New(t, nil)
	r.Handle = func(context.Context, *kafka.Record) error { return nil }
	c := client(t, r)
	calls := changing(t, r, c)
	var methods []string
	list := opsv1.File_parley_ops_v1_ops_service_proto.Services().Get(0).Methods()
	for i := range list.Len() {
		m := list.Get(i)
		o, _ := m.Options().(*descriptorpb.MethodOptions)
		if o.GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
			methods = append(methods, string(m.Name()))
			if f := m.Input().Fields().ByName("execute"); f == nil || f.Kind() != protoreflect.BoolKind {
				t.Errorf("%s has no dry run", m.Name())
			}
		}
	}
	if want := slices.Sorted(maps.Keys(calls)); !slices.Equal(slices.Sorted(slices.Values(methods)), want) {
		t.Fatalf("the service has %v, tested are %v", methods, want)
	}
	for name, call := range calls {
		if err := call(false); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := strings.Count(r.Log.String(), "call="+name+" by=ada execute=false"); n != 2 {
			t.Errorf("%s: the log has %d lines of a dry run, not one for its start and one for its end", name, n)
		}
	}
	if res, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{}); err != nil ||
		len(res.GetCalls()) != 0 {
		t.Fatalf("dry runs: %v, %v", res, err)
	}
	for name, call := range calls {
		if err := call(true); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res, err := c.ListOperatorCalls(t.Context(),
			&opsv1.ListOperatorCallsRequest{Call: name, Operator: "ada", PageSize: 10})
		if err != nil || len(res.GetCalls()) != 1 {
			t.Fatalf("%s: %v, %v", name, res, err)
		}
		got := res.GetCalls()[0]
		if got.GetOperator() != "ada" || !strings.Contains(got.GetRequest(), `"execute":true`) || got.GetBeganAt() == nil ||
			got.GetEndedAt() == nil || got.GetCode() == "" || got.GetResult() == "" {
			t.Errorf("%s: %v", name, got)
		}
	}
	redrive, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{Call: "RedriveDeadLetters"})
	if err != nil || redrive.GetCalls()[0].GetCode() != "ok" ||
		!strings.Contains(redrive.GetCalls()[0].GetResult(), `"done":"1"`) {
		t.Errorf("%v, %v", redrive, err)
	}
	drop, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{Call: "DropFailedOutboxRow"})
	if err != nil || drop.GetCalls()[0].GetCode() != "not_found" {
		t.Errorf("%v, %v", drop, err)
	}
}

// A read of users' content is recorded with its operator, but without the content. Refused calls
// and lists are not recorded as changes.
func TestContentIsRecorded(t *testing.T) {
	r := opstest.New(t, nil)
	c := client(t, r)
	id := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	for _, content := range []bool{false, true} {
		if _, err := c.GetDeadLetter(t.Context(), &opsv1.GetDeadLetterRequest{Id: id, Content: content}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{PageToken: "2030"}); err == nil {
		t.Error("a page token of another list was accepted, expected an error")
	}
	res, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{})
	if err != nil || len(res.GetCalls()) != 1 || res.GetCalls()[0].GetCall() != "GetDeadLetter" ||
		res.GetCalls()[0].GetCode() != "ok" {
		t.Fatalf("%v, %v", res, err)
	}
	if b, err := proto.Marshal(res); err != nil || strings.Contains(string(b), opstest.Secret) {
		t.Errorf("%v, %v", res, err)
	}
}

// A call whose row cannot be written does not act.
func TestNothingHappensUnrecorded(t *testing.T) {
	r := opstest.New(t, nil)
	handled := false
	r.Handle = func(context.Context, *kafka.Record) error { handled = true; return nil }
	c := client(t, r)
	id := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	testkit.Must(t, r.Store.Close())
	s, err := c.RedriveDeadLetters(t.Context(),
		&opsv1.RedriveDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{Ids: []string{id}}, Execute: true})
	if err = stream(s, err); err == nil || handled {
		t.Fatalf("handled: %v, %v", handled, err)
	}
}

// A call whose caller disconnected still gets its end recorded.
func TestLeftCallsEnd(t *testing.T) {
	r := opstest.New(t, nil)
	c := client(t, r)
	id := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	ctx, cancel := context.WithCancel(t.Context())
	r.Handle = func(ctx context.Context, _ *kafka.Record) error {
		cancel()
		<-ctx.Done()
		return errors.New("left")
	}
	s, err := c.RedriveDeadLetters(ctx,
		&opsv1.RedriveDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{Ids: []string{id}}, Execute: true})
	_ = stream(s, err)
	for {
		res, err := c.ListOperatorCalls(t.Context(), &opsv1.ListOperatorCallsRequest{})
		if err != nil || len(res.GetCalls()) != 1 {
			t.Fatalf("%v, %v", res, err)
		}
		if got := res.GetCalls()[0]; got.GetEndedAt() != nil {
			if got.GetCode() == "ok" {
				t.Errorf("%v", got)
			}
			return
		}
	}
}
