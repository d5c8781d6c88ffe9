package dynamo_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// service makes a chat service on a store; committed is called with its commits.
func service(t testing.TB, s *dynamo.Store, process string, committed func(chat.Commit)) *chat.Service {
	t.Helper()
	svc, err := chat.New(t.Context(), chat.Config{Store: s, Clock: time.Now, Generation: s.Generation(), Producer: process,
		Committed: committed})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

func group(t testing.TB, svc *chat.Service, users ...string) string {
	t.Helper()
	for _, u := range users {
		if err := svc.EnsureUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	c, err := svc.CreateGroup(t.Context(), chat.CreateGroup{Caller: users[0], Name: "group", Members: users[1:]})
	if err != nil || c.Incomplete != nil {
		t.Fatal(err, c.Incomplete)
	}
	return c.ChatID
}

func rows(t testing.TB, s store.Store, of store.Table, pk string) (list []store.Row) {
	t.Helper()
	for cursor, first := "", true; first || cursor != ""; first = false {
		p, err := s.Query(t.Context(), store.Query{Table: of, PK: pk, Cursor: cursor, Limit: 100, Consistency: store.Strong})
		if err != nil {
			t.Fatal(err)
		}
		list, cursor = append(list, p.Rows...), p.Cursor
	}
	return list
}

// Sixteen writers in two processes send to one chat: sequences and versions have no
// gap, each answer names the message that was stored, and both processes heard of
// their commits in order.
func TestSendsFromManyWriters(t *testing.T) { sends(t, dynamotest.Fresh(t)) }

// The same while a third of all requests is throttled, cancelled or loses its answer.
func TestSendsUnderFaults(t *testing.T) {
	f := dynamotest.RandomChaos(4)
	sends(t, dynamotest.Fresh(t, f.Inject))
	if f.Count() == 0 {
		t.Fatal("nothing was injected")
	}
}

func sends(t *testing.T, st *dynamo.Store) {
	const writers, each = 16, 12
	var mu sync.Mutex
	heard := map[string][]int64{}
	processes := make([]*chat.Service, 2)
	for i := range processes {
		name := fmt.Sprint("process", i)
		processes[i] = service(t, st, name, func(c chat.Commit) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range c.Events {
				heard[name] = append(heard[name], e.GetMetadata().GetVersion())
			}
		})
	}
	var users []string
	for w := range writers {
		users = append(users, fmt.Sprintf("user_%02d", w))
	}
	id := group(t, processes[0], users...)
	var wg sync.WaitGroup
	sent := make([]map[int64]string, writers)
	for w := range writers {
		sent[w] = map[int64]string{}
		wg.Go(func() {
			for i := range each {
				text := fmt.Sprintf("%d/%d", w, i)
				r := chat.Send{Caller: users[w], ChatID: id, Content: text, ClientMessageID: fmt.Sprintf("c-%d-%d", w, i)}
				got, err := processes[w%2].Send(t.Context(), r)
				for errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrAmbiguous) {
					got, err = processes[w%2].Send(t.Context(), r)
				}
				if err != nil {
					t.Error(err)
					return
				}
				sent[w][got.Sequence] = text
			}
		})
	}
	wg.Wait()
	messages := rows(t, st, store.Messages, id)
	if len(messages) != writers*each {
		t.Fatalf("%d messages", len(messages))
	}
	for i, r := range messages {
		m, err := table.MessageFrom(r)
		if err != nil || m.Sequence != int64(i+1) {
			t.Fatalf("message %d has sequence %d (%v)", i+1, m.Sequence, err)
		}
		w := slices.Index(users, m.SenderID)
		if sent[w][m.Sequence] != m.Content {
			t.Fatalf("message %d is %q, its sender was notified of %q", m.Sequence, m.Content, sent[w][m.Sequence])
		}
	}
	for i, r := range rows(t, st, store.Events, id) {
		if r.Key.SK != table.Number(int64(i+1)) {
			t.Fatalf("event %d has version %s", i+1, r.Key.SK)
		}
	}
	it, err := st.Get(t.Context(), table.HeadKey(id), store.Strong)
	if err != nil {
		t.Fatal(err)
	}
	head := table.HeadFrom(id, it)
	total := int64(0)
	for name, versions := range heard {
		if !slices.IsSorted(versions) {
			t.Errorf("%s heard of %v", name, versions)
		}
		total += int64(len(versions))
	}
	if head.Sequence != writers*each || total != head.Version {
		t.Fatalf("head %+v, %d commits reported", head, total)
	}
}

// metered opens a store whose requests are counted from start on.
func metered(b *testing.B) (*dynamo.Store, func()) {
	m := &dynamotest.Meter{}
	st := dynamotest.Fresh(b, m.Watch)
	b.Cleanup(func() {
		n, c := float64(b.N), m.Count()
		b.ReportMetric(float64(c.Requests)/n, "calls/op")
		b.ReportMetric(float64(c.Sent)/n, "sentB/op")
		b.ReportMetric(float64(c.Got)/n, "receivedB/op")
		b.ReportMetric(float64(c.WriteUnits)/n, "WCU/op")
	})
	return st, func() {
		m.Reset()
		b.ResetTimer()
	}
}

// A plan of six writes, three of them under conditions, as a send's.
func BenchmarkTransact(b *testing.B) {
	st, start := metered(b)
	text := store.NewItem(store.Attr{Name: "content", Value: store.String(strings.Repeat("x", 512))})
	start()
	for n := range b.N {
		sk := table.Number(int64(n))
		err := st.Transact(b.Context(), store.Plan{Writes: []store.Write{
			{Op: store.OpUpdate, Key: table.UserChatKey("u", "c"),
				Update: store.Update{Set: []store.Attr{{Name: "n", Value: store.Int(1)}}}, Cond: store.Condition{}.Without("left"),
				Name: "member"},
			{Op: store.OpPut, Key: table.HeadKey("c"),
				Item: store.NewItem(store.Attr{Name: "version", Value: store.Int(int64(n))}),
				Cond: store.Condition{}.Ne("version", store.Int(int64(n))), Name: "head"},
			{Op: store.OpPut, Key: table.RequestKey(sk), Item: store.NewItem(), Cond: store.Absent(), Name: "request"},
			{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: "c", SK: sk}, Item: text},
			{Op: store.OpPut, Key: store.Key{Table: store.Events, PK: "c", SK: sk}, Item: text},
			{Op: store.OpPut, Key: store.Key{Table: store.Outbox, PK: "00", SK: sk}, Item: store.NewItem()},
		}})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// Sends of 512 bytes: one caller, and 64 in one chat, whose sends share plans.
func BenchmarkSend(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			st, start := metered(b)
			svc := service(b, st, "process", func(chat.Commit) {})
			id := group(b, svc, "user_1", "user_2")
			text := strings.Repeat("x", 512)
			var n atomic.Int64
			var wg sync.WaitGroup
			start()
			for range callers {
				wg.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						if _, err := svc.Send(b.Context(),
							chat.Send{Caller: "user_1", ChatID: id, Content: text, ClientMessageID: fmt.Sprint(i)}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
