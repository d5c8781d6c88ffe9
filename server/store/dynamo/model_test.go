package dynamo_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// gen draws plans on a few items, so that they meet each other's.
type gen struct {
	*rand.Rand
	clock *storetest.Clock
}

func pick[T any](g gen, list ...T) T { return list[g.IntN(len(list))] }

// names has names of keys' attributes, which must not get in their way.
func (g gen) name() string { return pick(g, "a", "b", "c", "_user_id", "user_id", "__user_id") }

func (g gen) value() store.Value {
	switch g.IntN(8) {
	case 0:
		return store.String(pick(g, "", "x", "y"))
	case 1:
		return store.BytesOf(pick(g, "", "x"))
	case 2:
		return store.Bool(g.IntN(2) == 0)
	case 3:
		return store.List(pick(g, nil, []string{"x"}, []string{"x", ""}))
	case 4:
		return store.Int(pick(g, math.MaxInt64, math.MinInt64, int64(0)))
	}
	return store.Int(g.Int64N(4))
}

func (g gen) key() store.Key {
	id := pick(g, "1", "2", "3")
	return pick(g, store.Key{Table: store.Users, PK: id}, store.Key{Table: store.DeliveryState, PK: "u", SK: id},
		store.Key{Table: store.IdempotencyKeys, PK: id})
}

func (g gen) expires(k store.Key) (store.Attr, bool) {
	d, _ := store.Lookup(k.Table)
	at := g.clock.Now().Unix() + int64(g.IntN(6)) - 2
	return store.Attr{Name: store.ExpiresAtField, Value: store.Int(at)}, d.TTL && g.IntN(2) == 0
}

// attrs draws attributes with distinct names.
func (g gen) attrs(k store.Key) (list []store.Attr) {
	for range g.IntN(4) {
		if a := (store.Attr{Name: g.name(), Value: g.value()}); !slices.ContainsFunc(list,
			func(b store.Attr) bool { return a.Name == b.Name }) {
			list = append(list, a)
		}
	}
	if a, ok := g.expires(k); ok {
		list = append(list, a)
	}
	return list
}

func (g gen) cond() store.Condition {
	if g.IntN(4) > 0 {
		return nil
	}
	c := pick(g, nil, nil, store.Exists(), store.Absent())
	for range g.IntN(3) {
		scalar := pick(g, store.Int(g.Int64N(4)), store.String("x"))
		switch g.IntN(6) {
		case 0:
			c = c.Eq(g.name(), g.value())
		case 1:
			c = c.Ne(g.name(), g.value())
		case 2:
			c = c.Lt(g.name(), scalar)
		case 3:
			c = c.Gt(g.name(), scalar)
		case 4:
			c = c.Le(g.name(), scalar)
		case 5:
			c = c.Without(g.name())
		}
	}
	return c
}

func (g gen) write() store.Write {
	w := store.Write{Op: store.Op(g.IntN(4) + 1), Key: g.key(), Cond: g.cond(), Name: "condition"}
	switch w.Op {
	case store.OpPut:
		w.Item = store.NewItem(g.attrs(w.Key)...)
	case store.OpUpdate:
		for _, a := range g.attrs(w.Key) {
			switch {
			case a.Name == store.ExpiresAtField || g.IntN(3) == 0:
				w.Update.Set = append(w.Update.Set, a)
			case g.IntN(2) == 0:
				w.Update.Remove = append(w.Update.Remove, a.Name)
			default:
				w.Update.Add = append(w.Update.Add,
					store.Increment{Name: a.Name, N: pick[int64](g, 1, -1, 0, 7, math.MaxInt64, math.MinInt64)})
			}
		}
		if len(w.Update.Set)+len(w.Update.Remove)+len(w.Update.Add) == 0 {
			w.Update.Remove = []string{"a"}
		}
	case store.OpCheck:
		if len(w.Cond) == 0 {
			w.Cond = store.Absent()
		}
	}
	return w
}

func (g gen) plan() (p store.Plan) {
	for range 1 + g.IntN(4) {
		if w := g.write(); !slices.ContainsFunc(p.Writes, func(o store.Write) bool { return o.Key == w.Key }) {
			p.Writes = append(p.Writes, w)
		}
	}
	return p
}

// outcome is what can be compared of an answer: failed conditions with what they
// showed, or the kind of the error.
func outcome(err error) any {
	var failed *store.ConditionError
	switch {
	case errors.As(err, &failed):
		return failed.Failures
	case errors.Is(err, store.ErrInvalid):
		return store.ErrInvalid
	}
	return err
}

// Random plans, on items that expire and on such that do not, do what they do on the
// map engine, and show the same where they fail; also with faults on the way.
func TestSameAsMap(t *testing.T) {
	for name, change := range map[string][]func(*dynamo.Options){
		"plain":  nil,
		"faults": {dynamotest.Random(3).Inject, dynamo.NoShort},
	} {
		t.Run(name, func(t *testing.T) {
			clock := storetest.NewClock()
			g := gen{rand.New(rand.NewPCG(7, uint64(len(name)))), clock}
			s := dynamotest.Fresh(t, append(change, func(o *dynamo.Options) { o.Clock = clock.Now })...)
			oracle := storetest.NewMemory(clock.Now)
			seen := map[string]int{}
			for i := range 1500 {
				p := g.plan()
				got, want := outcome(s.Transact(t.Context(), p)), outcome(oracle.Transact(t.Context(), p))
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("plan %d at %d: %+v:\ngot  %+v\nwant %+v", i, clock.Now().Unix(), p, got, want)
				}
				switch want.(type) {
				case nil:
					seen["committed"]++
				case error:
					seen["refused"]++
				default:
					seen["failed"]++
				}
				if g.IntN(5) == 0 {
					clock.Add(time.Second)
				}
				var keys []store.Key
				for _, w := range p.Writes {
					keys = append(keys, w.Key)
				}
				a, err := s.BatchGet(t.Context(), keys, store.Strong)
				if err != nil {
					t.Fatal(err)
				}
				if b, err := oracle.BatchGet(t.Context(), keys, store.Strong); err != nil || !reflect.DeepEqual(a, b) {
					t.Fatalf("after plan %d: %+v:\ngot  %v\nwant %v (%v)", i, p, a, b, err)
				}
			}
			for kind, least := range map[string]int{"committed": 100, "failed": 100, "refused": 5} {
				if seen[kind] < least {
					t.Errorf("only %v", seen)
				}
			}
		})
	}
}

// Random queries show the rows that they show on the map engine, page after page,
// whatever their bounds, limits and cursors, and whether expired rows stand between.
func TestQueriesAsOnMap(t *testing.T) {
	clock := storetest.NewClock()
	g := gen{rand.New(rand.NewPCG(9, 9)), clock}
	s := dynamotest.Fresh(t, func(o *dynamo.Options) { o.Clock = clock.Now })
	oracle := storetest.NewMemory(clock.Now)
	const rows = 60
	sk := func(i int) string { return fmt.Sprintf("%03d", i) }
	for i := range rows {
		it := store.NewItem(store.Attr{Name: "n", Value: store.Int(int64(i))})
		if i%3 == 0 || (i > 20 && i < 35) {
			it = store.NewItem(it[0], store.Attr{Name: store.ExpiresAtField, Value: store.Int(clock.Now().Unix() + 1)})
		}
		w := []store.Write{{Op: store.OpPut, Key: store.Key{Table: store.DeliveryState, PK: "u", SK: sk(2 * i)}, Item: it}}
		if err := errors.Join(s.BatchWrite(t.Context(), w), oracle.BatchWrite(t.Context(), w)); err != nil {
			t.Fatal(err)
		}
	}
	clock.Add(time.Second)
	all := func(st store.Store, q store.Query) (list []store.Row) {
		t.Helper()
		for first := true; first || q.Cursor != ""; first = false {
			p, err := st.Query(t.Context(), q)
			if err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
			if q.Limit > 0 && len(p.Rows) > q.Limit {
				t.Fatalf("%+v: %d rows", q, len(p.Rows))
			}
			list, q.Cursor = append(list, p.Rows...), p.Cursor
		}
		return list
	}
	bound := func() string { return pick(g, "", sk(g.IntN(2*rows+4)), sk(g.IntN(2*rows+4))) }
	shown := 0
	for range 300 {
		q := store.Query{
			Table: store.DeliveryState, PK: pick(g, "u", "u", "u", "none"), From: bound(), To: bound(), Cursor: bound(),
			Descending: g.IntN(2) == 0, Limit: pick(g, 0, 1, 5, 20, 1000), Consistency: store.Strong,
		}
		got, want := all(s, q), all(oracle, q)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v:\ngot  %v\nwant %v", q, got, want)
		}
		shown += len(got)
	}
	if shown == 0 {
		t.Fatal("nothing was shown")
	}
}
