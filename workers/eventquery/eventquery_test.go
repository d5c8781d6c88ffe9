package eventquery_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/eventquery"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// fixture is a store with chats, and their events as they were committed.
type fixture struct {
	*testing.T
	mu     sync.Mutex
	now    time.Time
	store  store.Store
	chats  *chat.Service
	events []event.Event // of all chats
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, now: start}
	f.store = dynamotest.Store(t, f.clock)
	f.chats = f.service()
	for _, u := range []string{"alice", "bob", "carol", "dave"} {
		f.must(f.chats.EnsureUser(t.Context(), u))
	}
	return f
}

// service makes a process that writes to the store.
func (f *fixture) service() *chat.Service {
	f.Helper()
	s, err := chat.New(f.Context(), chat.Config{
		Store: f.store, Clock: f.clock, Generation: "g", Producer: "p", Shared: true,
		Committed: func(c chat.Commit) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events = append(f.events, c.Events...)
		},
	})
	f.must(err)
	return s
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

func (f *fixture) must(err error) {
	f.Helper()
	testkit.Must(f, err)
}

// group makes a group with n messages: versions 1 to n + 2.
func (f *fixture) group(n int) string {
	f.Helper()
	c, err := f.chats.CreateGroup(f.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"},
		Cause: event.Cause{Actor: "alice"}})
	f.must(err)
	for i := range n {
		sender := []string{"alice", "bob"}[i%2]
		_, err := f.chats.Send(f.Context(), chat.Send{Caller: sender, ChatID: c.ChatID, Content: "x",
			Cause: event.Cause{Actor: sender, Correlation: fmt.Sprint("request-", i%3)}})
		f.must(err)
	}
	return c.ChatID
}

func (f *fixture) write(w ...store.Write) {
	f.Helper()
	f.must(f.store.BatchWrite(f.Context(), w))
}

// list reads all pages of a list.
func (f *fixture) list(filter eventquery.Filter, o eventquery.Options) (found []eventquery.Found, read int) {
	f.Helper()
	o.Limit, o.MaxRead, o.MaxBytes = cmp.Or(o.Limit, 1000), cmp.Or(o.MaxRead, 1_000_000), cmp.Or(o.MaxBytes, 1<<30)
	for pages := 0; ; pages++ {
		page, err := eventquery.List(f.Context(), f.store, filter, o)
		f.must(err)
		if len(page.Events) > o.Limit || page.Read > o.MaxRead {
			f.Fatalf("%d events, %d read: more than %+v", len(page.Events), page.Read, o)
		}
		found, read = append(found, page.Events...), read+page.Read
		if o.After = page.Next; page.Next == "" {
			return found, read
		}
		if pages > 10_000 {
			f.Fatal("the pages do not end")
		}
	}
}

// names are events as chat/version, and whether those of each chat are in order.
func names(found []eventquery.Found) (list []string, ordered bool) {
	last := map[string]int64{}
	ordered = true
	for _, e := range found {
		list = append(list, fmt.Sprintf("%s/%d", e.ChatID, e.Version))
		ordered = ordered && e.Version > last[e.ChatID]
		last[e.ChatID] = e.Version
	}
	slices.Sort(list)
	return list, ordered
}

// committed are the names of the committed events that are wanted.
func (f *fixture) committed(want func(event.Event) bool) (list []string) {
	for _, e := range f.events {
		if want(e) {
			list = append(list, fmt.Sprintf("%s/%d", e.GetChatId(), e.GetMetadata().GetVersion()))
		}
	}
	slices.Sort(list)
	return list
}

// EV53: two processes that write to one chat at once number its events 1, 2, 3 and so on,
// each once; the loser of a version takes the next.
func TestVersionsHaveNoGap(t *testing.T) {
	f := newFixture(t)
	id := f.group(0)
	var wg sync.WaitGroup
	failures := make(chan error, 100)
	for _, s := range []*chat.Service{f.chats, f.service()} {
		for range 4 {
			wg.Go(func() {
				for range 6 {
					_, err := s.Send(t.Context(), chat.Send{Caller: "alice", ChatID: id, Content: "x"})
					failures <- err
				}
			})
		}
	}
	wg.Wait()
	close(failures)
	for err := range failures {
		f.must(err)
	}
	found, _ := f.list(eventquery.Filter{ChatID: id}, eventquery.Options{Limit: 7})
	if len(found) != 2+48 {
		t.Fatalf("%d events, not 50", len(found))
	}
	for i, e := range found {
		if e.Version != int64(i+1) || e.Body == nil || e.Body.GetMetadata().GetVersion() != e.Version {
			t.Fatalf("event %d is %+v", i+1, e.Event)
		}
	}
	// The version that is wanted must be the next one.
	err := f.store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.EventKey(id, 50),
		Item: table.Event{EventID: "evt_x", Type: "x"}.Item(), Cond: store.Absent(), Name: "event"}}})
	var taken *store.ConditionError
	if !errors.As(err, &taken) {
		t.Errorf("version 50 was written twice: %v", err)
	}
}

// Events are found by all that a filter has, in pages and reads of any size, each once and
// those of a chat in order.
func TestListFindsWhatMatches(t *testing.T) {
	f := newFixture(t)
	var ids []string
	for i := range 12 {
		ids = append(ids, f.group(2*i))
		f.pass(time.Minute)
	}
	md := func(e event.Event) int64 { return e.GetMetadata().GetVersion() }
	third := f.events[2].GetMetadata().GetEventId()
	for name, tt := range map[string]struct {
		filter eventquery.Filter
		want   func(e event.Event) bool
	}{
		"all":  {eventquery.Filter{}, func(event.Event) bool { return true }},
		"chat": {eventquery.Filter{ChatID: ids[9]}, func(e event.Event) bool { return e.GetChatId() == ids[9] }},
		"chat from a version": {eventquery.Filter{ChatID: ids[9], From: 20},
			func(e event.Event) bool { return e.GetChatId() == ids[9] && md(e) >= 20 }},
		"chat up to a version": {eventquery.Filter{ChatID: ids[9], To: 3},
			func(e event.Event) bool { return e.GetChatId() == ids[9] && md(e) <= 3 }},
		"no chat":  {eventquery.Filter{ChatID: "chat_nobody"}, func(event.Event) bool { return false }},
		"versions": {eventquery.Filter{From: 4, To: 6}, func(e event.Event) bool { return md(e) >= 4 && md(e) <= 6 }},
		"type": {eventquery.Filter{Types: []string{event.TypeChatCreated, event.TypeMembershipChanged}},
			func(e event.Event) bool {
				return slices.Contains([]string{"ChatCreated", "MembershipChanged"}, event.TypeOf(e))
			}},
		"type and time": {
			eventquery.Filter{Types: []string{event.TypeMessagePersisted}, After: start.Add(3 * time.Minute),
				Until: start.Add(6 * time.Minute)},
			func(e event.Event) bool {
				at := e.GetMetadata().GetEventTime().AsTime()
				return event.TypeOf(e) == "MessagePersisted" && !at.Before(start.Add(3*time.Minute)) &&
					at.Before(start.Add(6*time.Minute))
			},
		},
		"since": {eventquery.Filter{After: start.Add(11 * time.Minute)},
			func(e event.Event) bool {
				return !e.GetMetadata().GetEventTime().AsTime().Before(start.Add(11 * time.Minute))
			}},
		"actor": {eventquery.Filter{Actor: "bob"},
			func(e event.Event) bool { return e.GetMetadata().GetActorId() == "bob" }},
		"correlation": {eventquery.Filter{ChatID: ids[7], Correlation: "request-1"},
			func(e event.Event) bool {
				return e.GetChatId() == ids[7] && e.GetMetadata().GetCorrelationId() == "request-1"
			}},
		"id": {eventquery.Filter{ID: third}, func(e event.Event) bool { return e.GetMetadata().GetEventId() == third }},
	} {
		t.Run(name, func(t *testing.T) {
			want := f.committed(tt.want)
			for _, o := range []eventquery.Options{{}, {Limit: 1}, {Limit: 7}, {MaxRead: 1}, {MaxRead: 13, Limit: 3},
				{MaxBytes: 1}, {Standing: true, Limit: 5}} {
				found, read := f.list(tt.filter, o)
				got, ordered := names(found)
				if !slices.Equal(got, want) || !ordered {
					t.Fatalf("%+v: in order: %v\ngot  %v\nwant %v", o, ordered, got, want)
				}
				if tt.filter.ChatID == "" && read != len(f.events) {
					t.Errorf("%+v: %d events were read of %d", o, read, len(f.events))
				}
			}
		})
	}
}

// What cannot be asked for is refused, also a position that is none.
func TestListRefuses(t *testing.T) {
	f := newFixture(t)
	id := f.group(1)
	bounds := eventquery.Options{Limit: 1, MaxRead: 1, MaxBytes: 1}
	at := func(after string) eventquery.Options { o := bounds; o.After = after; return o }
	for name, tt := range map[string]struct {
		filter  eventquery.Filter
		options eventquery.Options
	}{
		"versions":            {eventquery.Filter{From: 3, To: 2}, bounds},
		"times":               {eventquery.Filter{After: start, Until: start}, bounds},
		"type":                {eventquery.Filter{Types: []string{"Nothing"}}, bounds},
		"bounds":              {eventquery.Filter{}, eventquery.Options{}},
		"position":            {eventquery.Filter{}, at("x")},
		"position in a chat":  {eventquery.Filter{ChatID: id}, at("x")},
		"position of outbox":  {eventquery.Filter{Statuses: []outbox.Status{outbox.New}}, at("64/1/x")},
		"position of a shard": {eventquery.Filter{Statuses: []outbox.Status{outbox.New}}, at("x")},
	} {
		if _, err := eventquery.List(t.Context(), f.store, tt.filter, tt.options); !errors.Is(err, eventquery.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// EV66: events are found by their status, whether the outbox, a chat or the whole event
// store is read, and however its rows overlap.
func TestListByStatus(t *testing.T) {
	f := newFixture(t)
	var ids []string
	for range 8 {
		ids = append(ids, f.group(6)) // versions 1 to 8
	}
	page, err := f.store.Scan(t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
	f.must(err)
	for _, row := range page.Rows { // all were published
		f.write(store.Write{Op: store.OpDelete, Key: row.Key})
	}
	put := func(chatID string, first, count int64, replay bool, problem string) {
		o := table.Outbox{Shard: event.Shard(chatID), AggregateID: chatID, FirstVersion: first, Count: count, Replay: replay,
			ReplayID: "r1"}
		it := o.Item()
		if problem != "" {
			it = store.NewItem(append(it, store.Attr{Name: table.AttrLastError, Value: store.String(problem)})...)
		}
		f.write(store.Write{Op: store.OpPut, Key: o.Key(), Item: it})
	}
	put(ids[1], 7, 2, false, "")     // 7, 8 new
	put(ids[2], 5, 1, false, "bad")  // 5 failed
	put(ids[2], 6, 3, false, "")     // 6 to 8 new
	put(ids[3], 2, 3, true, "")      // 2 to 4 once more
	put(ids[4], 3, 100, false, "no") // 3 to 8 failed, and the next row's are among them
	put(ids[4], 6, 3, false, "")
	put(ids[5], 1, 2, false, "") // 1, 2 new; all others may be those of a row that cannot be read
	f.write(store.Write{Op: store.OpPut, Item: table.Outbox{Count: 1}.Item(),
		Key: store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard(ids[5])), SK: ids[5] + "#nonsense"}})
	status := func(e event.Event) outbox.Status {
		v := e.GetMetadata().GetVersion()
		switch i := slices.Index(ids, e.GetChatId()); {
		case i == 1 && v >= 7, i == 2 && v >= 6, i == 3 && v >= 2 && v <= 4, i == 5 && v <= 2:
			return outbox.New
		case i == 2 && v == 5, i == 4 && v >= 3, i == 5:
			return outbox.Failed
		}
		return outbox.Published
	}
	for _, statuses := range [][]outbox.Status{{outbox.New}, {outbox.Failed}, {outbox.Published},
		{outbox.New, outbox.Failed}, {outbox.Published, outbox.Failed}} {
		for _, chatID := range append([]string{""}, ids...) {
			want := f.committed(func(e event.Event) bool {
				return (chatID == "" || e.GetChatId() == chatID) && slices.Contains(statuses, status(e))
			})
			for _, o := range []eventquery.Options{{}, {Limit: 1}, {MaxRead: 2}} {
				found, _ := f.list(eventquery.Filter{ChatID: chatID, Statuses: statuses}, o)
				got, _ := names(found)
				if !slices.Equal(got, want) {
					t.Fatalf("%v of %q with %+v:\ngot  %v\nwant %v", statuses, chatID, o, got, want)
				}
				for _, e := range found {
					if e.Standing.Status != status(e.Body) {
						t.Errorf("%s/%d is %+v", e.ChatID, e.Version, e.Standing)
					}
				}
			}
		}
	}
	one, err := eventquery.Get(t.Context(), f.store, ids[2], 5)
	f.must(err)
	if one.Standing.Status != outbox.Failed || one.Standing.LastError != "bad" || one.Version != 5 || one.Body == nil {
		t.Errorf("%+v", one)
	}
	if _, err := eventquery.Get(t.Context(), f.store, ids[2], 9); !errors.Is(err, eventquery.ErrNotFound) {
		t.Errorf("version 9: %v", err)
	}
}

// EV51: an event is stored with its key, id, type and payload, and nothing else. What
// becomes of it on its way to Kafka is not written to it.
func TestEventsHaveNoStatus(t *testing.T) {
	f := newFixture(t)
	id := f.group(2)
	read := func() (all string) {
		for row, err := range store.QueryAll(t.Context(), f.store, store.Query{Table: store.Events, PK: id}) {
			f.must(err)
			for _, a := range row.Item {
				if !slices.Contains([]string{"body", "event_id", "event_type", "payload"}, a.Name) {
					t.Errorf("an event has %q", a.Name)
				}
			}
			all += fmt.Sprintf("%s %v\n", row.Key, row.Item)
		}
		return all
	}
	before := read()
	if strings.Count(before, "\n") != 4 {
		t.Fatalf("events:\n%s", before)
	}
	for row, err := range outbox.Rows(t.Context(), f.store, id) { // failed, and published later
		f.must(err)
		f.must(f.store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Key: row.Key,
			Update: store.Update{Set: []store.Attr{{Name: table.AttrLastError, Value: store.String("bad")}}}}}}))
		f.write(store.Write{Op: store.OpDelete, Key: row.Key})
	}
	if after := read(); after != before {
		t.Errorf("the events were\n%s and are\n%s", before, after)
	}
}

// An event that cannot be read is shown with the reason, by what its row says, and is not
// taken for one that matches.
func TestUnreadableEvents(t *testing.T) {
	f := newFixture(t)
	id, other := f.group(3), f.group(0)
	f.write(store.Write{Op: store.OpPut, Key: table.EventKey(id, 3),
		Item: table.Event{ChatID: id, EventID: "evt_3", Type: event.TypeMessagePersisted, Payload: []byte{0xff}}.Item()})
	moved, err := f.store.Get(t.Context(), table.EventKey(other, 1), store.Strong)
	f.must(err)
	f.write(store.Write{Op: store.OpPut, Key: table.EventKey(id, 4), Item: moved})
	found, _ := f.list(eventquery.Filter{ChatID: id}, eventquery.Options{})
	if len(found) != 5 {
		t.Fatalf("%d events, not 5", len(found))
	}
	for i, says := range []string{"", "", "decode", "its content is that of", ""} {
		e := found[i]
		if (e.Problem == nil) != (says == "") || e.Problem != nil && !strings.Contains(e.Problem.Error(), says) ||
			(e.Body == nil) != (says != "") {
			t.Errorf("version %d: %v, not %q", e.Version, e.Problem, says)
		}
	}
	for name, tt := range map[string]struct {
		filter eventquery.Filter
		want   int
	}{
		"type": {eventquery.Filter{ChatID: id, Types: []string{event.TypeMessagePersisted}}, 2},
		"time": {eventquery.Filter{ChatID: id, After: start}, 3},
		"id":   {eventquery.Filter{ChatID: id, ID: "evt_3"}, 1},
	} {
		if found, _ := f.list(tt.filter, eventquery.Options{}); len(found) != tt.want {
			t.Errorf("%s: %d events, not %d", name, len(found), tt.want)
		}
	}
}

// Errors of the store end a list, wherever it reads.
func TestListFailsWithTheStore(t *testing.T) {
	f := newFixture(t)
	id := f.group(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, filter := range map[string]eventquery.Filter{"scan": {}, "chat": {ChatID: id},
		"outbox": {Statuses: []outbox.Status{outbox.New}}} {
		o := eventquery.Options{Limit: 1, MaxRead: 1, MaxBytes: 1}
		if _, err := eventquery.List(ctx, f.store, filter, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
