package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

const at = int64(1_700_000_000_123)

// planner makes ids of the size of real ones.
func planner() Planner {
	n := 0
	return Planner{
		Origin: event.Origin{Generation: "0123456789abcdef", Producer: ulid("srv_", 1)},
		NewID:  func(prefix string) string { n++; return ulid(prefix, n) },
	}
}

func ulid(prefix string, n int) string { return fmt.Sprintf("%s%026d", prefix, n) }

func message(chatID, sender, text string, n int) *command.Message {
	send := command.Send{
		Caller: sender, ChatID: chatID, ClientMessageID: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Content: text,
		ContentType: 1,
		Cause:       event.Cause{Trace: strings.Repeat("a", 32), Correlation: ulid("req_", n)},
	}
	return &command.Message{Send: send, Idempotency: send.Idempotency()}
}

// change is one that ann asks for, of bob's membership.
func change(role table.Role) command.Change {
	return command.Change{MemberChange: command.MemberChange{Caller: "ann", ChatID: "chat_1", UserID: "bob", Role: role}}
}

// decide makes the plan of a change with an operation.
func decide(s *State, op command.Operation, c command.Change) (*Plan, error) {
	c.Op = op
	p, _, err := planner().Change(s, c, at)
	return p, err
}

// evaluated counts the items that a store has to check before it can commit.
func evaluated(d *Plan) (n int) {
	for _, w := range d.Transaction().Writes {
		if len(w.Cond) > 0 || w.Op == store.OpUpdate {
			n++
		}
	}
	return n
}

func valid(t *testing.T, d *Plan) {
	t.Helper()
	p := d.Transaction()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if d.Head.Version != d.Base.Version+int64(len(d.Events)) {
		t.Errorf("%d events from %d to %d", len(d.Events), d.Base.Version, d.Head.Version)
	}
	order := map[string]int{CondRequest: 1, CondPair: 2, CondCaller: 3, CondTarget: 3, CondUser: 3, CondPending: 3,
		CondChat: 3, CondChats: 3, CondBlock: 3, CondHead: 4}
	last := 0
	for _, w := range p.Writes {
		if w.Name == "" {
			continue
		}
		if order[w.Name] < last && w.Name != CondPair {
			t.Errorf("condition %s is out of order", w.Name)
		}
		last = order[w.Name]
	}
}

func write(t *testing.T, d *Plan, key store.Key) store.Write {
	t.Helper()
	for _, w := range d.Transaction().Writes {
		if w.Key == key {
			return w
		}
	}
	t.Fatalf("no write of %s", key)
	return store.Write{}
}

func TestSendPlan(t *testing.T) {
	head := table.Head{ChatID: ulid("chat_", 1), Version: 10, Sequence: 4, MembershipVersion: 6, ChangedAt: at - 5}
	d, err := planner().Sends(head, []*command.Message{message(head.ChatID, "ann", "hello", 1)}, at)
	if err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := evaluated(d); n != 3 {
		t.Errorf("%d items are evaluated", n)
	}
	for _, w := range d.Transaction().Writes {
		if w.Key.Table == store.Chats || w.Key.Table == store.ChatMemberships {
			t.Errorf("a send touches %s", w.Key)
		}
	}
	want := table.Head{ChatID: head.ChatID, Version: 11, Sequence: 5, MembershipVersion: 6, ChangedAt: at, LastAt: at,
		LastSequence: 5, LastSender: "ann", LastPreview: "hello"}
	if d.Head != want {
		t.Errorf("%+v", d.Head)
	}
	e, ok := d.Events[0].(*eventv1.MessagePersisted)
	if id := strings.TrimPrefix(e.GetMetadata().GetEventId(), "evt_"); !ok || e.GetMessageId() != "msg_"+id ||
		d.Sent[0].MessageID != e.GetMessageId() || d.Sent[0].Version != 11 {
		t.Errorf("event %v, sent %+v", e, d.Sent[0])
	}
}

// Rule 7: a send of 512 bytes of text costs 12 write units and one for the outbox
// row's deletion, and a longer one no more than its text.
func TestSendCost(t *testing.T) {
	chatID, user := ulid("chat_", 1), ulid("user_", 1)
	head := table.Head{
		ChatID: chatID, Version: 1 << 30, Sequence: 1 << 30, MembershipVersion: 1 << 20, ChangedAt: at,
		LastSequence: 1 << 30, LastSender: user, LastPreview: strings.Repeat("p", table.MaxPreview),
	}
	row := table.UserChat{UserID: user, ChatID: chatID, History: table.SinceJoined, JoinedSequence: 1 << 30,
		JoinedVersion: 1 << 30, ReadSequence: 1 << 30, MutedUntil: at, Archived: true, ChangedAt: at}
	current := map[store.Key]store.Item{table.HeadKey(chatID): head.Item(), table.UserChatKey(user, chatID): row.Item()}
	for size, want := range map[int]int{1: 13, 512: 13, 1000: 17, 3000: 25} {
		d, err := planner().Sends(head, []*command.Message{message(chatID, user, strings.Repeat("x", size), 1)}, at)
		if err != nil {
			t.Fatal(err)
		}
		units := 1 // the deletion of the outbox row
		for _, w := range d.Transaction().Writes {
			after, err := w.Next(current[w.Key])
			if err != nil {
				t.Fatal(err)
			}
			// A transactional write costs two units per KB, of the item with its key.
			bytes := len("pk") + len(w.Key.PK) + len("sk") + len(w.Key.SK) + after.Size()
			units += 2 * ((bytes + 1023) / 1024)
			if size == 512 && bytes > 1024 {
				t.Errorf("%s has %d bytes", w.Key.Table, bytes)
			}
		}
		if units != want {
			t.Errorf("%d bytes cost %d units, not %d", size, units, want)
		}
	}
}

func TestGroupOfSends(t *testing.T) {
	head := table.Head{ChatID: "chat_1", Version: 2, MembershipVersion: 2}
	var capacity Capacity
	var sends []*command.Message
	for i := 0; ; i++ {
		m := message("chat_1", fmt.Sprint("u", i), strings.Repeat("x", command.MaxContent), i)
		if !capacity.Add(m) {
			break
		}
		sends = append(sends, m)
	}
	if len(sends) != MaxSends {
		t.Errorf("%d sends", len(sends))
	}
	d, err := planner().Sends(head, sends, at)
	if err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := len(d.Transaction().Writes); n != 98 {
		t.Errorf("%d writes", n)
	}
	// Two of one sender share an update, which counts both up to the later one.
	sends = []*command.Message{message("chat_1", "a", "1", 1), message("chat_1", "b", "2", 2),
		message("chat_1", "a", "3", 3)}
	if d, err = planner().Sends(head, sends, at); err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := len(d.Transaction().Writes); n != 3*3+2+2 {
		t.Errorf("%d writes", n)
	}
	for user, want := range map[string][2]int64{"a": {3, 2}, "b": {2, 1}} {
		got := write(t, d, table.UserChatKey(user, "chat_1")).Update
		if got.Set[0].Name != table.AttrOwnLast || got.Set[0].Value.Int64() != want[0] ||
			got.Add[0] != (store.Increment{Name: table.AttrOwnCount, N: want[1]}) {
			t.Errorf("%s: %+v", user, got)
		}
	}
	for i, sent := range d.Sent {
		if sent.Sequence != int64(i+1) || sent.Version != int64(i+3) || d.Events[i].GetMetadata().GetVersion() != int64(i+3) {
			t.Errorf("%+v", sent)
		}
	}
	if len(d.Sent) != 3 {
		t.Errorf("%d of 3 messages have a place", len(d.Sent))
	}
	var huge Capacity
	if !huge.Add(&command.Message{Send: command.Send{Content: strings.Repeat("x", 3<<20)}}) ||
		huge.Add(message("c", "a", "x", 1)) {
		t.Error("a plan's size is not bounded")
	}
}

func TestConflictsOfSends(t *testing.T) {
	head := table.Head{ChatID: "chat_1", Version: 2, MembershipVersion: 2}
	sends := []*command.Message{
		message("chat_1", "ann", "1", 1), message("chat_1", "eve", "2", 2), message("chat_1", "ann", "3", 3),
		message("chat_1", "bob", "4", 4), message("chat_1", "eve", "5", 5),
	}
	d, err := planner().Sends(head, sends, at)
	if err != nil {
		t.Fatal(err)
	}
	fail := func(key store.Key, current store.Item) store.Failure {
		for i, w := range d.Transaction().Writes {
			if w.Key == key {
				return store.Failure{Index: i, Name: w.Name, Current: current}
			}
		}
		t.Fatalf("no write of %s", key)
		return store.Failure{}
	}
	earlier := table.Request{Hash: sends[0].Idempotency.Hash, MessageID: "msg_x", Sequence: 1, Version: 2,
		CreatedAt: 7}.Item()
	other := table.Request{Hash: []byte("other")}.Item()
	now := table.Head{ChatID: "chat_1", Version: 5, Sequence: 3, MembershipVersion: 2}
	failed := &store.ConditionError{Failures: []store.Failure{
		fail(table.RequestKey(sends[0].Idempotency.Key), earlier),
		fail(table.RequestKey(sends[3].Idempotency.Key), other),
		fail(table.RequestKey(sends[4].Idempotency.Key),
			table.Request{Hash: sends[4].Idempotency.Hash, MessageID: "msg_e"}.Item()),
		fail(table.UserChatKey("eve", "chat_1"), nil),
		fail(table.HeadKey("chat_1"), now.Item()),
	}}
	outcomes, next, err := d.Conflicts(failed, sends)
	if err != nil || next != now || len(outcomes) != 5 {
		t.Fatalf("%v, %+v, %v", outcomes, next, err)
	}
	for i, out := range outcomes {
		if out.Retry != (i == 2) {
			t.Errorf("message %d: %+v", i, out)
		}
	}
	if out := outcomes[0]; out.Err != nil || !out.Sent.Replayed || out.Sent.MessageID != "msg_x" ||
		out.Sent.CreatedAt != 7 {
		t.Errorf("%+v", out)
	}
	if !errors.Is(outcomes[1].Err, command.ErrNotAMember) || !errors.Is(outcomes[3].Err, command.ErrKeyReused) {
		t.Error(outcomes[1].Err, outcomes[3].Err)
	}
	// Idempotency comes before membership.
	if out := outcomes[4]; out.Err != nil || out.Sent.MessageID != "msg_e" {
		t.Errorf("%+v", out)
	}
	failed.Failures = []store.Failure{fail(table.HeadKey("chat_1"), nil)}
	if _, next, err = d.Conflicts(failed, sends[:1]); !errors.Is(err, command.ErrNotAMember) || next.Version != 0 {
		t.Error(next, err)
	}
}

func others(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("u%03d", i)
	}
	return out
}

func TestCreationPlans(t *testing.T) {
	m := planner()
	c := command.CreateDirect{Caller: "ann", Other: "bob", History: table.All, RequestID: "r"}
	d, err := m.Direct("chat_1", c, at)
	if err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := len(d.Transaction().Writes); n != 15 || d.Head.Version != 2 || d.Head.MembershipVersion != 2 { // L-014
		t.Errorf("%d writes, %+v", n, d.Head)
	}
	if row := table.RequestFrom("", write(t, d, table.RequestKey(c.Idempotency().Key)).Item); row.ChatID != "chat_1" ||
		row.ExpiresAt != at/1000+86400 {
		t.Errorf("%+v", row)
	}
	g := command.CreateGroup{Caller: "ann", Name: "group", Members: others(99), History: table.All, RequestID: "r"}
	if d, err = m.Group("chat_1", g, at); err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := len(d.Transaction().Writes); n != 9 || d.Head.Version != 1 { // L-029: phase 1 does not grow with the members
		t.Errorf("%d writes, %+v", n, d.Head)
	}
	pending := table.PendingFrom("chat_1", write(t, d, table.PendingKey("chat_1")).Item)
	chat := table.ChatFrom("chat_1", write(t, d, table.ChatKey("chat_1")).Item)
	if len(pending.Members) != 99 || chat.MemberCount != 100 ||
		pending.Causation != d.Events[0].GetMetadata().GetEventId() {
		t.Errorf("%+v, %+v", pending, chat)
	}
	s := &State{Head: d.Head, Chat: &chat, Pending: &pending}
	if d, err = m.Chunk(s, MaxChunk, at); err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if n := len(d.Transaction().Writes); n != 4*24+4 || MaxChunk != 24 { // L-034
		t.Errorf("%d writes", n)
	}
	for _, e := range d.Events {
		if md := e.GetMetadata(); md.GetActorId() != "ann" || md.GetCausationId() != pending.Causation ||
			md.GetCorrelationId() != pending.Correlation {
			t.Errorf("%v", md)
		}
	}
	if w := write(t, d, table.PendingKey("chat_1")); w.Op != store.OpUpdate || len(w.Update.Set[0].Value.Strings()) != 75 {
		t.Errorf("%+v", w)
	}
	pending.Members = pending.Members[:24]
	if d, err = m.Chunk(s, MaxChunk, at); err != nil {
		t.Fatal(err)
	}
	if w := write(t, d, table.PendingKey("chat_1")); w.Op != store.OpDelete || len(w.Cond) == 0 {
		t.Errorf("%+v", w)
	}
}

// L-071: what failed says why, without another read.
func TestApplyConflict(t *testing.T) {
	c := change(table.Member)
	now := table.Head{ChatID: "chat_1", Version: 9, MembershipVersion: 5}
	head := store.Failure{Name: CondHead, Current: now.Item()}
	for name, x := range map[string]struct {
		failures []store.Failure
		want     error
	}{
		"demoted": {[]store.Failure{{Name: CondCaller, Current: role("ann", table.Member).Item()}, head},
			command.ErrForbidden},
		"removed": {[]store.Failure{{Name: CondCaller}, head}, command.ErrNotAMember},
		"added": {[]store.Failure{{Name: CondTarget, Current: role("bob", table.Member).Item()}, head},
			command.ErrAlreadyMember},
		"full": {[]store.Failure{
			{Name: CondChat, Current: table.Chat{Type: table.Group, Status: table.Active, MemberCount: 100}.Item()}, head},
			command.ErrChatFull},
		"archived": {[]store.Failure{{Name: CondChat, Current: table.Chat{Type: table.Group, Status: "archived"}.Item()},
			head}, command.ErrInvalidOperation},
		"only renamed": {[]store.Failure{
			{Name: CondChat, Current: table.Chat{Type: table.Group, Status: table.Active, MemberCount: 3, Version: 9}.Item()},
			head}, nil},
		"only a send": {[]store.Failure{head}, nil},
	} {
		s := group(role("ann", table.Owner), nil)
		if !s.ApplyConflict(c, &store.ConditionError{Failures: x.failures}) || s.Head != now {
			t.Errorf("%s: %+v", name, s)
		}
		if _, err := decide(s, command.OpAdd, c); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := group(role("ann", table.Member), role("ann", table.Member))
	self := change("")
	self.UserID = "ann"
	s.ApplyConflict(self, &store.ConditionError{Failures: []store.Failure{{Name: CondTarget}}})
	if s.Caller != nil || s.Target != nil {
		t.Error("the caller is the target")
	}
	if s.ApplyConflict(self, &store.ConditionError{Failures: []store.Failure{{Name: CondUser}}}) {
		t.Error("a row that is none of the state's was applied")
	}
}
