package chat_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"go.uber.org/goleak"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engines runs a test on every engine, on DynamoDB also while a third of all requests is
// refused, lost or loses its answer. Those on DynamoDB Local are not run where there is
// none.
func engines(t *testing.T, test func(t *testing.T, st store.Store)) {
	t.Helper()
	t.Run("map", func(t *testing.T) { test(t, storetest.NewMemory(time.Now)) })
	t.Run("embedded", func(t *testing.T) {
		st, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, st)
	})
	t.Run("dynamodb", func(t *testing.T) { test(t, dynamotest.Fresh(t)) })
	t.Run("dynamodb with faults", func(t *testing.T) { test(t, dynamotest.Fresh(t, dynamotest.RandomChaos(11).Inject)) })
}

// tb is what tests and property tests have in common.
type tb interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// fixture is a service, or several, on one store, with what they committed.
type fixture struct {
	t     tb
	ctx   context.Context
	store store.Store // without faults
	most  int64       // members of a group

	mu      sync.Mutex
	commits map[string][]chat.Commit // by process and chat
}

func newFixture(t tb, st store.Store) *fixture {
	return &fixture{t: t, ctx: context.Background(), store: st, most: 100, commits: map[string][]chat.Commit{}}
}

// noSleep lets retries go at once, so that tests do not depend on time.
func noSleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func (w *fixture) service(process string, st store.Store, change ...func(*chat.Config)) *chat.Service {
	w.t.Helper()
	cfg := chat.Config{
		Store: st, Clock: time.Now, Generation: "g1", Producer: process, Sleep: noSleep,
		Committed: func(c chat.Commit) {
			w.mu.Lock()
			defer w.mu.Unlock()
			key := process + "/" + c.ChatID
			w.commits[key] = append(w.commits[key], c)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := chat.New(w.ctx, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *fixture) users(s *chat.Service, ids ...string) {
	w.t.Helper()
	for _, u := range ids {
		if err := s.EnsureUser(w.ctx, u); err != nil {
			w.t.Fatal(err)
		}
	}
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return out
}

func (w *fixture) group(s *chat.Service, owner string, members ...string) string {
	w.t.Helper()
	c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: owner, Name: "group", Members: members})
	if err != nil || c.Incomplete != nil {
		w.t.Fatal(err, c.Incomplete)
	}
	return c.ChatID
}

func (w *fixture) head(id string) table.Head {
	w.t.Helper()
	it, err := w.store.Get(w.ctx, table.HeadKey(id), store.Strong)
	if err != nil || it == nil {
		w.t.Fatalf("head of %s: %v, %v", id, it, err)
	}
	return table.HeadFrom(id, it)
}

func (w *fixture) chat(id string) table.Chat {
	w.t.Helper()
	it, err := w.store.Get(w.ctx, table.ChatKey(id), store.Strong)
	if err != nil || it == nil {
		w.t.Fatalf("chat %s: %v, %v", id, it, err)
	}
	return table.ChatFrom(id, it)
}

func (w *fixture) userChat(user, id string) table.UserChat {
	w.t.Helper()
	it, err := w.store.Get(w.ctx, table.UserChatKey(user, id), store.Strong)
	if err == nil && it == nil {
		it, err = w.store.Get(w.ctx, table.LeftKey(user, id), store.Strong)
	}
	if err != nil || it == nil {
		w.t.Fatalf("row of %s in %s: %v, %v", user, id, it, err)
	}
	return table.UserChatFrom(user, id, it)
}

func (w *fixture) scan(t store.Table) []store.Row {
	w.t.Helper()
	var rows []store.Row
	for cursor := ""; ; {
		page, err := w.store.Scan(w.ctx, store.Scan{Table: t, Segments: 1, Cursor: cursor})
		if err != nil {
			w.t.Fatal(err)
		}
		rows = append(rows, page.Rows...)
		if cursor = page.Cursor; cursor == "" {
			return rows
		}
	}
}

// replica is what a chat's events say about it.
type replica struct {
	events   map[int64]event.Event
	outbox   map[int64]int
	messages map[int64]table.Message
	members  map[string]table.Role
	pending  []string
}

// check holds the whole store against its invariants.
func (w *fixture) check() {
	w.t.Helper()
	chats := map[string]*replica{}
	of := func(id string) *replica {
		if chats[id] == nil {
			chats[id] = &replica{
				events: map[int64]event.Event{}, outbox: map[int64]int{}, messages: map[int64]table.Message{},
				members: map[string]table.Role{},
			}
		}
		return chats[id]
	}
	eventIDs := map[string]bool{}
	for _, r := range w.scan(store.Events) {
		row, err := table.EventFrom(r)
		if err != nil {
			w.t.Fatal(err)
		}
		e, err := event.Unmarshal(row.Type, row.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := protovalidate.Validate(e); err != nil {
			w.t.Errorf("event %s@%d: %v", row.ChatID, row.Version, err)
		}
		md := e.GetMetadata()
		if md.GetVersion() != row.Version || md.GetEventId() != row.EventID || e.GetChatId() != row.ChatID ||
			eventIDs[row.EventID] {
			w.t.Errorf("event %s@%d and its row differ: %v", row.ChatID, row.Version, e)
		}
		eventIDs[row.EventID] = true
		of(row.ChatID).events[row.Version] = e
	}
	for _, r := range w.scan(store.Outbox) {
		row, err := table.OutboxFrom(r)
		if err != nil {
			w.t.Fatal(err)
		}
		if row.Shard != event.Shard(row.AggregateID) {
			w.t.Errorf("outbox row of %s in shard %d", row.AggregateID, row.Shard)
		}
		for v := row.FirstVersion; v < row.FirstVersion+row.Count; v++ {
			of(row.AggregateID).outbox[v]++
		}
	}
	for _, r := range w.scan(store.Messages) {
		m, err := table.MessageFrom(r)
		if err != nil {
			w.t.Fatal(err)
		}
		of(m.ChatID).messages[m.Sequence] = m
	}
	for _, r := range w.scan(store.ChatMemberships) {
		of(r.Key.PK).members[r.Key.SK] = table.MembershipFrom(r.Key.PK, r.Key.SK, r.Item).Role
	}
	for _, r := range w.scan(store.PendingMembers) {
		of(r.Key.PK).pending = table.PendingFrom(r.Key.PK, r.Item).Members
		if len(of(r.Key.PK).pending) == 0 {
			w.t.Errorf("%s: empty pending row", r.Key.PK)
		}
	}
	heads := w.scan(store.ChatCounters)
	if len(heads) != len(chats) || len(heads) != len(w.scan(store.Chats)) {
		w.t.Errorf("%d heads, %d chats with rows, %d chats", len(heads), len(chats), len(w.scan(store.Chats)))
	}
	for _, r := range heads {
		w.checkChat(table.HeadFrom(r.Key.PK, r.Item), of(r.Key.PK))
	}
	w.checkRows()
	for _, r := range w.scan(store.IdempotencyKeys) {
		row := table.RequestFrom(r.Key.PK, r.Item)
		if !strings.HasPrefix(row.Scope, "send#") {
			continue
		}
		if m := of(row.ChatID).messages[row.Sequence]; m.MessageID != row.MessageID || m.Version != row.Version {
			w.t.Errorf("request %s: %+v, message %+v", row.Scope, row, m)
		}
	}
	direct := map[string]bool{}
	for _, r := range w.scan(store.DirectChatIndex) {
		id := table.DirectIndexFrom(r.Item).ChatID
		c := w.chat(id)
		if len(c.DirectUsers) != 2 || table.DirectIndexKey(c.DirectUsers[0], c.DirectUsers[1]) != r.Key || direct[id] {
			w.t.Errorf("index %s → %+v", r.Key.PK, c)
		}
		direct[id] = true
	}
	for id := range chats {
		if isDirect := w.chat(id).Type == table.Direct; isDirect != direct[id] {
			w.t.Errorf("%s: direct %v, indexed %v", id, isDirect, direct[id])
		}
	}
}

func (w *fixture) checkChat(h table.Head, r *replica) {
	w.t.Helper()
	if int64(len(r.events)) != h.Version || int64(len(r.messages)) != h.Sequence || len(r.outbox) != len(r.events) {
		w.t.Errorf("%s: %d events, %d messages, %d versions in the outbox; head %+v", h.ChatID, len(r.events),
			len(r.messages), len(r.outbox), h)
		return
	}
	var sequence, mv, count int64
	var at time.Time
	members := map[string]table.Role{}
	joined := map[string]*eventv1.MembershipChanged{}
	since := map[string]int64{} // versions that memberships begin with
	coming := map[string]bool{} // on the way in since the creation
	for v := int64(1); v <= h.Version; v++ {
		e := r.events[v]
		if e == nil || r.outbox[v] != 1 {
			w.t.Errorf("%s@%d: event %v, %d outbox rows", h.ChatID, v, e, r.outbox[v])
			return
		}
		md := e.GetMetadata()
		if md.GetEventTime().AsTime().Before(at) {
			w.t.Errorf("%s@%d: time goes back", h.ChatID, v)
		}
		at = md.GetEventTime().AsTime()
		switch e := e.(type) {
		case *eventv1.MessagePersisted:
			sequence++
			m := r.messages[sequence]
			if e.GetSequence() != sequence || m.MessageID != e.GetMessageId() || m.Version != v || m.Content != e.GetContent() ||
				members[m.SenderID] == "" {
				w.t.Errorf("%s@%d: message %+v, event %v", h.ChatID, v, m, e)
			}
		case *eventv1.ChatCreated:
			mv, count = 1, int64(e.GetMemberCount())
			members[e.GetCreatedBy()] = w.roleOf(h.ChatID, v)
			for _, u := range e.GetInitialMembers() {
				coming[u] = e.GetChatType() == eventv1.ChatType_CHAT_TYPE_GROUP && u != e.GetCreatedBy()
			}
		case *eventv1.ChatUpdated:
			mv++
			count = int64(e.GetMemberCount())
		case *eventv1.MembershipChanged:
			mv++
			u, from, begins := e.GetUserId(), sequence, v
			if coming[u] {
				from, begins = 0, 1
			}
			coming[u] = false
			w.apply(h.ChatID, v, e, members, &count, from)
			if e.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED {
				joined[u], since[u] = e, begins
			}
		}
		if md.GetMembershipVersion() != mv {
			w.t.Errorf("%s@%d: membership version %d, not %d", h.ChatID, v, md.GetMembershipVersion(), mv)
		}
	}
	c := w.chat(h.ChatID)
	if h.MembershipVersion != mv || h.ChangedAt != at.UnixMilli() || c.MemberCount != count {
		w.t.Errorf("%s: head %+v, membership version %d, count %d of %d", h.ChatID, h, mv, c.MemberCount, count)
	}
	if c.MemberCount != int64(len(r.members)+len(r.pending)) || c.MemberCount > w.most {
		w.t.Errorf("%s: %d members, %d pending, count %d", h.ChatID, len(r.members), len(r.pending), c.MemberCount)
	}
	owners := 0
	for u, role := range members {
		if r.members[u] != role {
			w.t.Errorf("%s: %s is %q, events say %q", h.ChatID, u, r.members[u], role)
		}
		if role == table.Owner {
			owners++
		}
		row := w.userChat(u, h.ChatID)
		if e := joined[u]; e != nil && (row.JoinedVersion != since[u] || row.JoinedSequence != e.GetJoinedSequence()) {
			w.t.Errorf("%s: row of %s %+v, event %v", h.ChatID, u, row, e)
		}
	}
	if len(members) != len(r.members) || (c.Type == table.Group) != (owners == 1) {
		w.t.Errorf("%s: members %v, events say %v", h.ChatID, r.members, members)
	}
	if h.Sequence > 0 {
		last := r.messages[h.Sequence]
		if h.LastSequence != h.Sequence || h.LastSender != last.SenderID || h.LastPreview != table.Preview(last.Content) {
			w.t.Errorf("%s: head %+v, last message %+v", h.ChatID, h, last)
		}
	}
}

func (w *fixture) roleOf(id string, _ int64) table.Role {
	if w.chat(id).Type == table.Direct {
		return table.Member
	}
	return table.Owner
}

func (w *fixture) apply(
	id string, v int64, e *eventv1.MembershipChanged, members map[string]table.Role, count *int64, sequence int64,
) {
	w.t.Helper()
	user := e.GetUserId()
	switch e.GetChangeType() {
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
		if members[user] != "" || e.GetJoinedSequence() != sequence {
			w.t.Errorf("%s@%d: %v; was %q, sequence %d", id, v, e, members[user], sequence)
		}
		members[user] = table.Member
		if e.GetRole() == eventv1.MemberRole_MEMBER_ROLE_ADMIN {
			members[user] = table.Admin
		}
		// Members on their way in count from the beginning.
		if n := int64(e.GetMemberCountAfter()); n != *count && n != *count+1 {
			w.t.Errorf("%s@%d: count %d after %d", id, v, n, *count)
		}
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED:
		if members[user] == "" || members[user] == table.Owner || int64(e.GetMemberCountAfter()) != *count {
			w.t.Errorf("%s@%d: %v; was %q, count %d", id, v, e, members[user], *count)
		}
		members[user] = table.Member
		if e.GetRole() == eventv1.MemberRole_MEMBER_ROLE_ADMIN {
			members[user] = table.Admin
		}
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
		delete(members, user)
		if int64(e.GetMemberCountAfter()) != *count-1 {
			w.t.Errorf("%s@%d: count %d after %d", id, v, e.GetMemberCountAfter(), *count)
		}
	}
	*count = int64(e.GetMemberCountAfter())
}

// checkPayload holds the bytes of a commit against the row that the store has.
func (w *fixture) checkPayload(id string, version int64, payload []byte) {
	w.t.Helper()
	key := table.EventKey(id, version)
	it, err := w.store.Get(w.ctx, key, store.Strong)
	if err != nil || it == nil {
		w.t.Fatalf("event %s@%d: %v, %v", id, version, it, err)
	}
	row, err := table.EventFrom(store.Row{Key: key, Item: it})
	if err != nil || !bytes.Equal(row.Payload, payload) {
		w.t.Errorf("%s@%d: the commit has other bytes than the store (%v)", id, version, err)
	}
}

// checkCommits holds what hooks received against the store: each process in order
// and without repetition; with whole, every version of every chat by somebody.
func (w *fixture) checkCommits(whole bool) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]map[int64]bool{}
	for key, commits := range w.commits {
		last := int64(0)
		for _, c := range commits {
			first := c.Events[0].GetMetadata().GetVersion()
			if first <= last {
				w.t.Errorf("%s: commit of %d after %d", key, first, last)
			}
			o, err := table.OutboxFrom(c.Outbox)
			if err != nil || o.FirstVersion != first || o.Count != int64(len(c.Events)) || o.AggregateID != c.ChatID {
				w.t.Errorf("%s: outbox row %+v (%v) for %d events from %d", key, o, err, len(c.Events), first)
			}
			if len(c.Payloads) != len(c.Events) {
				w.t.Fatalf("%s: %d payloads of %d events", key, len(c.Payloads), len(c.Events))
			}
			for i, e := range c.Events {
				v := e.GetMetadata().GetVersion()
				w.checkPayload(c.ChatID, v, c.Payloads[i])
				if v != first+int64(i) {
					w.t.Errorf("%s: event %d of a commit has version %d", key, i, v)
				}
				if seen[c.ChatID] == nil {
					seen[c.ChatID] = map[int64]bool{}
				}
				if seen[c.ChatID][v] {
					w.t.Errorf("%s: version %d reported twice", key, v)
				}
				seen[c.ChatID][v] = true
				last = v
			}
			if c.Head.Version != last || c.Head.ChatID != c.ChatID {
				w.t.Errorf("%s: head %+v after %d", key, c.Head, last)
			}
		}
	}
	if !whole {
		return
	}
	for _, r := range w.scan(store.ChatCounters) {
		if h := table.HeadFrom(r.Key.PK, r.Item); int64(len(seen[h.ChatID])) != h.Version {
			w.t.Errorf("%s: %d of %d versions were reported", h.ChatID, len(seen[h.ChatID]), h.Version)
		}
	}
}
