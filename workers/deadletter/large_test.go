package deadletter

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
)

// A dead letter of a record of 2 MiB, which compressed fits into its topic but not into a dead
// letter, is written without the value: with the key, the position and the missing size. Its
// redrive fails with a clear error, and others of its key stay behind it.
func TestRecordTooLargeForItsDeadLetter(t *testing.T) {
	r := newFixture(t)
	large := &kafka.Record{
		Topic: kafka.MessagesPersisted, Partition: 3, Offset: 77, Timestamp: r.now, Key: []byte("chat"),
		Value:   bytes.Repeat([]byte("x"), 2<<20),
		Headers: []kafka.Header{{Key: "event_type", Value: []byte("Foreign")}},
	}
	small := &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 3, Offset: 78, Timestamp: r.now, Key: []byte("chat"),
		Value: []byte("y")}
	fits := &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 4, Offset: 1, Timestamp: r.now, Key: []byte("other"),
		Value: bytes.Repeat([]byte("z"), 940<<10)}
	for _, rec := range []*kafka.Record{large, small, fits} {
		if err := r.write(t.Context(),
			consume.DeadLetter{Record: rec, Group: "g", Consumer: "c", Reason: "permanent: no event", FailedAt: r.now,
				Attempts: 1}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.manager.Get(t.Context(), "g/messages.persisted/3/77")
	testkit.Must(t, err)
	if got.Omitted != 2<<20+17 || got.Record.Value != nil || string(got.Record.Key) != "chat" || got.Record.Offset != 77 {
		t.Fatalf("%d bytes are missing, the value has %d, key %q", got.Omitted, len(got.Record.Value), got.Record.Key)
	}
	if got, err = r.manager.Get(t.Context(), "g/messages.persisted/4/1"); err != nil || got.Omitted != 0 ||
		!bytes.Equal(got.Record.Value, fits.Value) {
		t.Fatalf("a record that fits has %d bytes, %d are missing: %v", len(got.Record.Value), got.Omitted, err)
	}
	var reason string
	calls := 0
	rep, err := r.manager.Redrive(t.Context(), Filter{}, Redrive{
		Actor: "ann", Rate: 1000,
		Handlers: map[string]consume.Handler{"g": func(context.Context, *kafka.Record) error { calls++; return nil }},
		OnOutcome: func(id string, what Outcome, why string) error {
			if id == "g/messages.persisted/3/77" {
				reason = why
			}
			return nil
		},
	})
	if err != nil || rep.Failed != 1 || rep.Behind != 1 || rep.Done != 1 || calls != 1 ||
		!strings.Contains(reason, "too many for its dead letter") {
		t.Fatalf("%+v, %d calls, %q: %v", rep, calls, reason, err)
	}
}
