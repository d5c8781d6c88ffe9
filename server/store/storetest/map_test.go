package storetest_test

import (
	"fmt"
	"testing"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMap(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Engine {
		clock := storetest.NewClock()
		return storetest.Engine{
			Store: storetest.NewMemory(clock.Now), Clock: clock,
			Without: map[storetest.Category]string{storetest.Restart: "it keeps nothing"},
		}
	})
}

// A clone and its original go ways of their own.
func TestClone(t *testing.T) {
	clock := storetest.NewClock()
	a := storetest.NewMemory(clock.Now)
	key := func(sk string) store.Key { return store.Key{Table: store.Messages, PK: "c", SK: sk} }
	put := func(m *storetest.Memory, sk string, n int64) {
		t.Helper()
		it := store.NewItem(store.Attr{Name: "n", Value: store.Int(n)})
		if err := m.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key(sk), Item: it}}); err != nil {
			t.Fatal(err)
		}
	}
	show := func(m *storetest.Memory) string {
		t.Helper()
		p, err := m.Query(t.Context(), store.Query{Table: store.Messages, PK: "c"})
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, r := range p.Rows {
			text += fmt.Sprint(r.Key.SK, "=", r.Item.Get("n").Int64(), " ")
		}
		return text
	}
	put(a, "1", 1)
	put(a, "3", 3)
	b := a.Clone()
	put(a, "1", 10)
	put(a, "2", 20)
	put(b, "2", 2)
	put(b, "0", 0)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got := show(b); got != "0=0 1=1 2=2 3=3 " {
		t.Fatalf("the clone has %s", got)
	}
	if got := show(b.Clone()); got != show(b) {
		t.Fatalf("its clone has %s", got)
	}
}

func BenchmarkMap(b *testing.B) {
	const chats = 100
	fill := func(b *testing.B) *storetest.Memory {
		m := storetest.NewMemory(storetest.NewClock().Now)
		for c := range chats {
			for i := range 20 {
				k := store.Key{Table: store.Messages, PK: fmt.Sprint("chat", c), SK: fmt.Sprintf("%06d", i)}
				if err := m.BatchWrite(b.Context(), []store.Write{{Op: store.OpPut, Key: k, Item: store.NewItem()}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportAllocs()
		b.ResetTimer()
		return m
	}
	b.Run("Get", func(b *testing.B) {
		m, k := fill(b), store.Key{Table: store.Messages, PK: "chat7", SK: "000007"}
		for b.Loop() {
			if it, err := m.Get(b.Context(), k, store.Strong); it == nil || err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Transact", func(b *testing.B) { // a send: three conditions, six writes
		m := fill(b)
		items := []store.Item{store.NewItem(store.Attr{Name: "n", Value: store.Int(1)})}
		for n := 0; b.Loop(); n++ {
			sk := fmt.Sprintf("%08d", n%1000)
			p := store.Plan{Writes: []store.Write{
				{Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: sk}, Item: items[0],
					Cond: store.Condition{}.Ne("n", store.Int(2)), Name: "request"},
				{Op: store.OpUpdate, Key: store.Key{Table: store.DeliveryState, PK: "u", SK: "c"},
					Update: store.Update{Set: []store.Attr{{Name: "n", Value: store.Int(1)}}}, Cond: store.Condition{}.Without("left"),
					Name: "member"},
				{Op: store.OpPut, Key: store.Key{Table: store.ChatCounters, PK: "c"}, Item: items[0],
					Cond: store.Condition{}.Ne("n", store.Int(2)), Name: "head"},
				{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: "c", SK: sk}, Item: items[0]},
				{Op: store.OpPut, Key: store.Key{Table: store.Events, PK: "c", SK: sk}, Item: items[0]},
				{Op: store.OpPut, Key: store.Key{Table: store.Outbox, PK: "00", SK: sk}, Item: items[0]},
			}}
			if err := m.Transact(b.Context(), p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Query", func(b *testing.B) {
		m := fill(b)
		for b.Loop() {
			if p, err := m.Query(b.Context(), store.Query{Table: store.Messages, PK: "chat7"}); len(p.Rows) != 20 || err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Clone", func(b *testing.B) { // 2,000 items in 100 partitions
		m := fill(b)
		for b.Loop() {
			m.Clone()
		}
	})
}
