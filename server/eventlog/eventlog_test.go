package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// eventRow is the row of a message in a chat.
func eventRow(t testing.TB, chat string, version int64, text string) table.Event {
	t.Helper()
	id := fmt.Sprint("evt_", chat, version)
	payload, err := event.Marshal(&eventv1.MessagePersisted{ChatId: chat, Content: text, Metadata: &eventv1.EventMetadata{
		EventId: id, EventType: event.TypeMessagePersisted, Generation: "committed", Version: version, PartitionKey: chat,
		EventTime: timestamppb.Now(),
	}})
	testkit.Must(t, err)
	return table.Event{ChatID: chat, Version: version, EventID: id, Type: event.TypeMessagePersisted, Payload: payload}
}

// counted counts the keys of reads, and bounds them as engines do.
type counted struct {
	store.Store
	calls, keys int
}

func (c *counted) BatchGet(ctx context.Context, keys []store.Key, how store.Consistency) ([]store.Item, error) {
	c.calls++
	c.keys += len(keys)
	return c.Store.BatchGet(ctx, keys, how)
}

// References become records in their order, not in that of the rows; an event that is
// referred to twice is read once, and no read asks for more than a store answers.
func TestRecords(t *testing.T) {
	s := &counted{Store: storetest.NewMemory(time.Now)}
	rng := rand.New(rand.NewPCG(1, 2))
	refs := record.References{PublishedIn: "published"}
	for chat := range 30 {
		for version := range int64(9) {
			e := eventRow(t, fmt.Sprint("chat_", chat), version+1, "text")
			put := store.Write{Op: store.OpPut, Key: table.EventKey(e.ChatID, e.Version), Item: e.Item()}
			testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{put}))
			for range 1 + chat%2 { // some were published again
				refs.List = append(refs.List, record.Reference{Chat: e.ChatID, Version: e.Version, Schema: 5, Time: version})
			}
		}
	}
	rng.Shuffle(len(refs.List), func(i, j int) { refs.List[i], refs.List[j] = refs.List[j], refs.List[i] })
	got := testkit.Value(Records(t.Context(), s, refs))(t)
	if len(got) != len(refs.List) || s.keys != 270 || s.calls != 3 {
		t.Errorf("%d records of %d references, %d keys in %d reads", len(got), len(refs.List), s.keys, s.calls)
	}
	for i, r := range got {
		ref := refs.List[i]
		id, payload, err := event.Unframe(r.Value)
		testkit.Must(t, err)
		e := testkit.Value(event.Unmarshal(event.TypeMessagePersisted, payload))(t)
		want := []string{fmt.Sprint("evt_", ref.Chat, ref.Version), event.TypeMessagePersisted, "committed", "published"}
		for k, name := range []string{"event_id", "event_type", "generation", "published_in"} {
			if h := r.Headers[k]; h.Key != name || string(h.Value) != want[k] {
				t.Errorf("record %d has header %s %q, want %s %q", i, h.Key, h.Value, name, want[k])
			}
		}
		if id != 5 || string(r.Key) != ref.Chat || e.GetMetadata().GetVersion() != ref.Version || r.Time != ref.Time ||
			len(r.Headers) != 4 {
			t.Errorf("record %d of %+v is of schema %d, key %s, %v", i, ref, id, r.Key, e)
		}
	}
	if none := testkit.Value(Records(t.Context(), s, record.References{}))(t); len(none) > 0 {
		t.Errorf("%+v", none)
	}
}

// A row that is missing, or that is no event, is corruption that names the chat and the version.
func TestMissingEvents(t *testing.T) {
	s := storetest.NewMemory(time.Now)
	good := eventRow(t, "chat_a", 1, "text")
	for _, e := range []table.Event{
		good,
		{ChatID: "chat_a", Version: 2, Type: "Unheard", Payload: good.Payload},
		{ChatID: "chat_a", Version: 3, Type: good.Type, Payload: []byte{0xff}},
		{ChatID: "chat_a", Version: 4, Type: good.Type, Payload: []byte{0x0a, 0x01, 0xff}},
	} {
		put := store.Write{Op: store.OpPut, Key: table.EventKey("chat_a", e.Version), Item: e.Item()}
		testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{put}))
	}
	for version := range int64(6) {
		_, err := Records(t.Context(), s, record.References{List: []record.Reference{
			{Chat: "chat_a", Version: 1}, {Chat: "chat_a", Version: max(version, 1)},
		}})
		if bad := version > 1; errors.Is(err, store.ErrCorrupt) != bad || (err != nil) != bad {
			t.Errorf("event %d: %v", version, err)
		}
	}
	broken := errors.New("broken")
	one := record.References{List: make([]record.Reference, 1)}
	if _, err := Records(t.Context(), failing{s, broken}, one); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

type failing struct {
	store.Store
	err error
}

func (f failing) BatchGet(context.Context, []store.Key, store.Consistency) ([]store.Item, error) {
	return nil, f.err
}
