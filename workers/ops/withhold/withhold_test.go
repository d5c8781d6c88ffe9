package withhold_test

import (
	"context"
	"errors"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
	"github.com/parley-chat/parley/workers/ops/withhold"
)

// away is a store that does not answer.
type away struct{ store.Store }

// Get implements store.Store.
func (away) Get(context.Context, store.Key, store.Consistency) (store.Item, error) {
	return nil, store.ErrUnavailable
}

// Content is shown to who asks for it, unless its account is deleted.
func TestContent(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	ann := store.NewItem(store.Attr{Name: people.AttrDeletedAt, Value: store.Int(1)})
	bob := table.User{Status: people.Suspended}.Item()
	testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{
		{Op: store.OpPut, Key: table.UserKey("ann"), Item: ann}, {Op: store.OpPut, Key: table.UserKey("bob"), Item: bob}}))
	by := func(user string) event.Event {
		return &eventv1.MessagePersisted{Metadata: &eventv1.EventMetadata{ActorId: user}}
	}
	for name, c := range map[string]struct {
		e           event.Event
		asked, want bool
	}{
		"of a deleted account": {by("ann"), true, false}, "not asked for": {by("bob"), false, false},
		"of somebody": {by("bob"), true, true}, "of nobody who is known": {by("cat"), true, true},
		"without an actor": {by(""), true, true}, "unreadable": {nil, true, true},
	} {
		if got, err := withhold.Content(t.Context(), st, c.e, c.asked); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := withhold.Content(t.Context(), away{}, by("ann"), true); got || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without the store: %v, %v", got, err)
	}
}

// A record that cannot be read is shown where it is of nobody, and refused without the store.
func TestUnreadable(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{
		{Op: store.OpPut, Key: table.ChatKey("chat_1"), Item: table.Chat{Type: table.Group}.Item()}}))
	for name, c := range map[string]struct {
		key         string
		asked, want bool
	}{
		"under a chat's key": {"chat_1", true, false}, "not asked for": {"x", false, false},
		"under the key of no chat": {"chat_2", true, true}, "without a key": {"", true, true},
		"under no text": {"\xff", true, true},
	} {
		got, err := withhold.Unreadable(t.Context(), st, []byte(c.key), []byte("junk"), event.TypeMessagePersisted, c.asked)
		if err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	got, err := withhold.Unreadable(t.Context(), away{}, []byte("chat_1"), nil, "", true)
	if got || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without the store: %v, %v", got, err)
	}
}
