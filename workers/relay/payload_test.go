package relay

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
)

// The events of nudges are published byte for byte as the store has them, and those that
// come without their stored form are encoded again.
func TestNudgesArePublishedAsStored(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	re := r.relay()
	r.must(re.Cycle(r.ctx))
	var values [][]byte
	publish := re.cfg.Publish
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		records := Records(list)
		for _, rec := range records {
			values = append(values, rec.Value)
		}
		return publish(ctx, list)
	}
	r.send(id)
	stored := r.commits[len(r.commits)-1]
	// A field of a newer version, which encoding the event again would leave out.
	payload := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(stored.Payloads[0]), 1000, protowire.VarintType), 1)
	stored.Payloads = [][]byte{payload}
	re.Nudge(stored)
	r.must(re.Cycle(r.ctx))
	r.send(id)
	encoded := r.commits[len(r.commits)-1]
	want := encoded.Payloads[0]
	encoded.Payloads = nil
	re.Nudge(encoded)
	r.copies = true
	r.must(re.Cycle(r.ctx))
	if r.copied != 1 { // a reference would be another record than the one that was published
		t.Errorf("%d events were encoded again and published without their chat, want 1", r.copied)
	}
	if len(values) != 2 {
		t.Fatalf("%d records were published, want 2", len(values))
	}
	for i, want := range [][]byte{payload, want} {
		if _, got, err := event.Unframe(values[i]); err != nil || !bytes.Equal(got, want) {
			t.Errorf("record %d has the payload %x, want %x (%v)", i, got, want, err)
		}
	}
}

// The payloads of nudges count in the inbox's bytes, and are freed with them.
func TestPayloadsInTheInboxAreBounded(t *testing.T) {
	re := newFixture(t).relay()
	for i := range 100 {
		re.Nudge(chat.Commit{ChatID: fmt.Sprint("chat_", i), Events: []event.Event{&eventv1.MessagePersisted{}},
			Payloads: [][]byte{make([]byte, 1<<20)}})
	}
	kept := 0
	for _, w := range re.inbox.chats {
		kept += len(w.commits)
	}
	if kept == 0 || kept > 32 || len(re.inbox.order) != 100 {
		t.Errorf("%d payloads of a megabyte are kept, want 1 to 32; of %d chats, want 100", kept, len(re.inbox.order))
	}
	re.inbox.dequeue(1 << 20)
	if re.inbox.bytes != 0 || re.inbox.events != 0 {
		t.Errorf("an empty inbox counts %d bytes and %d events", re.inbox.bytes, re.inbox.events)
	}
}
