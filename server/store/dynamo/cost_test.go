package dynamo_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// userIDs are as long as real ones.
func userIDs(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("user_01HZY7M3N4P5Q6R7S8T9V0%04d", i))
	}
	return list
}

func messageID(n int) string { return fmt.Sprintf("01900000-0000-7000-8000-%012d", n) }

// A send of 512 bytes of text costs 13 write units, with the deletion of its outbox
// row, whatever the number of members, and reads nothing. Each of its
// rows is in a table of its own, which is what DynamoDB Local counts right: so the meter,
// which knows DynamoDB's rules only, is held against it.
func TestSendCostsThirteenWriteUnits(t *testing.T) {
	for _, members := range []int{2, 100} {
		m := &dynamotest.Meter{}
		st := dynamotest.Fresh(t, m.Watch)
		var last chat.Commit
		svc := service(t, st, "process", func(c chat.Commit) { last = c })
		users := userIDs(members)
		id := group(t, svc, users...)
		for n, length := range []int{512, 512, 1000} {
			before := st.Stats()
			m.Reset()
			r := chat.Send{Caller: users[1], ChatID: id, Content: strings.Repeat("x", length), ClientMessageID: messageID(n)}
			if _, err := svc.Send(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := st.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: last.Outbox.Key}}); err != nil {
				t.Fatal(err)
			}
			after, c := st.Stats(), m.Count()
			want := map[int]int{512: 13, 1000: 17}[length]
			if units := after.WriteUnits - before.WriteUnits; units != float64(want) || c.WriteUnits != want {
				t.Errorf("%d members: a send of %d bytes costs %g write units, by the rules %d, not %d", members, length, units,
					c.WriteUnits, want)
			}
			if after.ReadUnits != before.ReadUnits || after.Requests-before.Requests != 2 {
				t.Errorf("%d members: %g read units, %d requests", members, after.ReadUnits-before.ReadUnits,
					after.Requests-before.Requests)
			}
		}
	}
}

// held is a store whose next plan waits.
type held struct {
	store.Store
	mu   sync.Mutex
	gate chan struct{} // nil: open
}

func (h *held) Transact(ctx context.Context, p store.Plan) error {
	h.mu.Lock()
	gate := h.gate
	h.gate = nil
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return h.Store.Transact(ctx, p)
}

// Sends that gather while a plan is under way share the next one: 24 of one sender cost
// 151 units with the deletion of their one outbox row, 24 of 24 senders 197; one by one
// they would cost 312.
func TestGroupedSendsCostLess(t *testing.T) {
	for senders, want := range map[int]int{1: 151, 24: 197} {
		m := &dynamotest.Meter{}
		outside := dynamotest.NewOutside(t, m.Watch)
		synctest.Test(t, func(t *testing.T) {
			h := &held{Store: outside}
			var last chat.Commit
			svc, err := chat.New(t.Context(),
				chat.Config{Store: h, Clock: time.Now, Generation: "g", Producer: "p", Committed: func(c chat.Commit) { last = c }})
			if err != nil {
				t.Fatal(err)
			}
			users := userIDs(25)
			id := group(t, svc, users...)
			gate := make(chan struct{})
			h.gate = gate
			var wg sync.WaitGroup
			for n := range 25 { // the first goes alone
				wg.Go(func() {
					r := chat.Send{Caller: users[n%senders], ChatID: id, Content: strings.Repeat("x", 512),
						ClientMessageID: messageID(n)}
					if _, err := svc.Send(t.Context(), r); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			m.Reset()
			close(gate)
			wg.Wait()
			if len(last.Events) != 24 {
				t.Fatalf("%d messages in one plan", len(last.Events))
			}
			if err := outside.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: last.Outbox.Key}}); err != nil {
				t.Fatal(err)
			}
			c := m.Count()
			if units := c.WriteUnits - 12; units != want || c.Requests != 3 || c.ByName["TransactWriteItems"] != 2 {
				t.Errorf("%d senders: 24 sends in one plan cost %d units, not %d: %+v", senders, units, want, c)
			}
		})
	}
}

// What the commands of a chat cost, in requests and in units of DynamoDB, once the process
// knows the chat; what creation costs grows with the members, nothing else does.
func TestWhatCommandsCost(t *testing.T) {
	m := &dynamotest.Meter{}
	st := dynamotest.Fresh(t, m.Watch)
	now := time.Now() // stands still: the service writes the time down now and then
	svc, err := chat.New(t.Context(),
		chat.Config{Store: st, Clock: func() time.Time { return now }, Generation: "g", Producer: "p"})
	if err != nil {
		t.Fatal(err)
	}
	users := userIDs(102)
	for _, u := range users {
		if err := svc.EnsureUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	var id string
	create := func(n int) func() error {
		return func() error {
			c, err := svc.CreateGroup(ctx, chat.CreateGroup{Caller: users[0], Name: "group", Members: users[1:n]})
			id = c.ChatID
			return err
		}
	}
	change := func(op chat.Operation, user int) func() error {
		return func() error {
			_, err := svc.Change(ctx, op, chat.MemberChange{Caller: users[0], ChatID: id, UserID: users[user],
				Role: table.Admin})
			return err
		}
	}
	name := "other"
	if err := create(2)(); err != nil {
		t.Fatal(err)
	}
	direct, err := svc.CreateDirect(ctx, chat.CreateDirect{Caller: users[0], Other: users[1]})
	if err != nil {
		t.Fatal(err)
	}
	mark := func(chatID *string) func() error {
		return func() error {
			if _, err := svc.Send(ctx, chat.Send{Caller: users[0], ChatID: *chatID, Content: "x"}); err != nil {
				return err
			}
			m.Reset()
			_, err := svc.MarkRead(ctx, chat.MarkRead{Caller: users[1], ChatID: *chatID, Sequence: 1})
			return err
		}
	}
	for _, c := range []struct {
		name            string
		do              func() error
		requests, write int
		read            float64
	}{
		{"create a group of 2", create(2), 5, 32, 3},
		{"create a group of 100", create(100), 14, 880, 111},
		{"remove a member", change(chat.OpRemove, 50), 2, 20, 4},
		{"add a member", change(chat.OpAdd, 50), 2, 18, 3},
		{"change a role", change(chat.OpRole, 50), 2, 8, 4},
		{"rename", func() error {
			_, _, err := svc.UpdateChat(ctx, chat.ChatChange{Caller: users[0], ChatID: id, Name: &name})
			return err
		}, 2, 10, 2},
		{"mark as read", mark(&id), 3, 1, 2},
		{"mark as read in a direct chat, which tells the other one", mark(&direct.ChatID), 4, 4, 3},
	} {
		m.Reset()
		before := st.Stats()
		if err := c.do(); err != nil {
			t.Fatal(c.name, err)
		}
		got, after := m.Count(), st.Stats()
		if read := after.ReadUnits - before.ReadUnits; got.Requests != c.requests || got.WriteUnits != c.write ||
			read != c.read {
			t.Errorf("%s: %d requests %v, %d write units, %g read units; want %d, %d, %g", c.name, got.Requests, got.ByName,
				got.WriteUnits, read, c.requests, c.write, c.read)
		}
	}
}

// A chat that takes more than its partition can: two of three transactions on its head are
// refused. All sends are stored all the same, because those that wait share plans.
func TestHotHead(t *testing.T) {
	n := 0
	f := dynamotest.NewFaults(func(r dynamotest.Request) dynamotest.Fault {
		if r.Operation != "TransactWriteItems" || !strings.Contains(string(r.Body), "_chat_counters") {
			return dynamotest.None
		}
		n++
		return []dynamotest.Fault{dynamotest.None, dynamotest.Capacity, dynamotest.NoCapacity}[n%3]
	})
	st := dynamotest.Fresh(t, f.Inject)
	plans := 0
	svc := service(t, st, "process", func(chat.Commit) { plans++ })
	users := userIDs(8)
	id := group(t, svc, users...)
	plans = 0
	const callers, each = 48, 4
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				r := chat.Send{Caller: users[c%len(users)], ChatID: id, Content: "x", ClientMessageID: messageID(c*each + i)}
				if _, err := svc.Send(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(rows(t, st, store.Messages, id)); got != callers*each || plans >= callers*each {
		t.Errorf("%d messages in %d plans", got, plans)
	}
	if met := f.Met(); met[dynamotest.Capacity] == 0 || met[dynamotest.NoCapacity] == 0 {
		t.Errorf("met %v", met)
	}
}

// A chat whose head takes nothing at all holds up no other: there is no common budget of
// repetitions that it could use up.
func TestHotHeadHoldsUpNoOther(t *testing.T) {
	var hot atomic.Value // the chat, "" for none
	hot.Store("")
	f := dynamotest.NewFaults(func(r dynamotest.Request) dynamotest.Fault {
		if id := hot.Load().(string); id != "" && r.Operation == "TransactWriteItems" &&
			strings.Contains(string(r.Body), id) {
			return dynamotest.NoCapacity
		}
		return dynamotest.None
	})
	st := dynamotest.Fresh(t, f.Inject, func(o *dynamo.Options) { o.Wire.Sleep = nil })
	svc := service(t, st, "process", nil)
	users := userIDs(8)
	one, other := group(t, svc, users...), group(t, svc, users...)
	send := func(id string, n int) {
		if _, err := svc.Send(t.Context(),
			chat.Send{Caller: users[n%len(users)], ChatID: id, Content: "x", ClientMessageID: messageID(n)}); err != nil {
			t.Error(err)
		}
	}
	hot.Store(one)
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() { send(one, n) })
	}
	for n := range 32 {
		send(other, 100+n)
	}
	if n := len(rows(t, st, store.Messages, one)); n != 0 {
		t.Errorf("%d messages in a chat that takes none", n)
	}
	hot.Store("")
	wg.Wait()
	if a, b := len(rows(t, st, store.Messages, one)), len(rows(t, st, store.Messages, other)); a != 16 || b != 32 {
		t.Errorf("%d and %d messages", a, b)
	}
}
