package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Clock is a clock that tests set.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock makes a clock at a fixed time.
func NewClock() *Clock { return &Clock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Add moves the clock on.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Engine is an engine under test.
type Engine struct {
	Store store.Store
	Clock *Clock
	// Reopen closes the store and opens it again with what it kept.
	Reopen func() store.Store
	// Without names the obligations that the engine cannot fulfil, each with the
	// reason.
	Without map[Category]string
}

// Category is a part of the contract that an engine may be excused from.
type Category string

// The categories.
const (
	Restart  Category = "restart"  // keeps what it has when it is opened again
	Overflow Category = "overflow" // refuses increments beyond 64 bits
	Expiry   Category = "expiry"   // follows the clock of the test
)

// Run runs the contract on an engine: every obligation that package store states
// has a case. open is called once per case and must register its own cleanup.
func Run(t *testing.T, open func(t *testing.T) Engine) {
	for _, c := range []struct {
		name string
		run  func(*fixture)
		part Category // if an engine may be excused
	}{
		{name: "PutGetDelete", run: testPutGetDelete},
		{name: "Kinds", run: testKinds},
		{name: "Update", run: testUpdate},
		{name: "UpdateErrors", run: testUpdateErrors},
		{name: "Overflow", run: testOverflow, part: Overflow},
		{name: "Conditions", run: testConditions},
		{name: "AllFailuresInOrder", run: testAllFailures},
		{name: "Atomic", run: testAtomic},
		{name: "Check", run: testCheck},
		{name: "Limits", run: testLimits},
		{name: "BatchGet", run: testBatchGet},
		{name: "BatchWrite", run: testBatchWrite},
		{name: "Query", run: testQuery},
		{name: "QueryPages", run: testQueryPages},
		{name: "QueryIsOfOnePartition", run: testQueryPartition},
		{name: "Order", run: testOrder},
		{name: "Scan", run: testScan},
		{name: "Expiry", run: testExpiry, part: Expiry},
		{name: "ExpiredPages", run: testExpiredPages, part: Expiry},
		{name: "NoLostUpdate", run: testNoLostUpdate},
		{name: "Transfers", run: testTransfers},
		{name: "OneWinner", run: testOneWinner},
		{name: "StrongReads", run: testStrongReads},
		{name: "CloseUnderLoad", run: testCloseUnderLoad},
		{name: "Context", run: testContext},
		{name: "Closed", run: testClosed},
		{name: "Reopen", run: testReopen, part: Restart},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t)
			if why, ok := e.Without[c.part]; ok {
				t.Skip(why)
			}
			c.run(&fixture{T: t, ctx: t.Context(), Engine: e})
		})
	}
}

type fixture struct {
	*testing.T
	Engine
	ctx context.Context
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func attr(name string, v store.Value) store.Attr { return store.Attr{Name: name, Value: v} }

func item(n int64) store.Item { return store.NewItem(attr("n", store.Int(n))) }

func user(id string) store.Key { return store.Key{Table: store.Users, PK: id} }

func message(chat, seq string) store.Key { return store.Key{Table: store.Messages, PK: chat, SK: seq} }

func put(k store.Key, it store.Item) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: it}
}

func (f *fixture) transact(writes ...store.Write) error {
	return f.Store.Transact(f.ctx, store.Plan{Writes: writes})
}

func (f *fixture) get(k store.Key) store.Item {
	f.Helper()
	it, err := f.Store.Get(f.ctx, k, store.Strong)
	f.must(err)
	return it
}

func equal(a, b store.Item) bool {
	return (a == nil) == (b == nil) &&
		slices.EqualFunc(a, b, func(x, y store.Attr) bool { return x.Name == y.Name && x.Value.Equal(y.Value) })
}

func (f *fixture) wantItem(k store.Key, want store.Item) {
	f.Helper()
	if got := f.get(k); !equal(got, want) {
		f.Fatalf("%s is %v, want %v", k, got, want)
	}
}

func (f *fixture) wantFailures(err error, names ...string) *store.ConditionError {
	f.Helper()
	var failed *store.ConditionError
	if !errors.As(err, &failed) {
		f.Fatalf("got %v, want failed conditions %v", err, names)
	}
	var got []string
	for _, x := range failed.Failures {
		got = append(got, x.Name)
	}
	if !slices.Equal(got, names) {
		f.Fatalf("failed %v, want %v", got, names)
	}
	return failed
}

func (f *fixture) wantInvalid(err error, what string) {
	f.Helper()
	if !errors.Is(err, store.ErrInvalid) {
		f.Fatalf("%s: got %v, want ErrInvalid", what, err)
	}
}

func testPutGetDelete(f *fixture) {
	f.wantItem(user("a"), nil)
	f.must(f.transact(put(user("a"), item(1))))
	f.wantItem(user("a"), item(1))
	f.must(f.transact(put(user("a"), store.NewItem())))
	f.wantItem(user("a"), store.NewItem())
	f.must(f.transact(store.Write{Op: store.OpDelete, Key: user("a")}))
	f.wantItem(user("a"), nil)
	f.must(f.transact(store.Write{Op: store.OpDelete, Key: user("a")}))
	f.must(f.Store.Durable(f.ctx))
}

func testKinds(f *fixture) {
	it := store.NewItem(
		attr("s", store.String("tea ☕\x00")), attr("e", store.String("")), attr("max", store.Int(math.MaxInt64)),
		attr("min", store.Int(math.MinInt64)),
		attr("b", store.Bytes([]byte{0, 1, 255})), attr("t", store.Bool(true)), attr("f", store.Bool(false)),
		attr("l", store.List([]string{"b", "", "a"})), attr("el", store.List(nil)),
	)
	f.must(f.transact(put(user("a"), it)))
	f.wantItem(user("a"), it)
}

func testUpdate(f *fixture) {
	update := func(u store.Update) store.Write { return store.Write{Op: store.OpUpdate, Key: user("a"), Update: u} }
	f.must(f.transact(update(store.Update{Set: []store.Attr{attr("b", store.String("x"))},
		Add: []store.Increment{{Name: "n", N: 5}}})))
	f.wantItem(user("a"), store.NewItem(attr("b", store.String("x")), attr("n", store.Int(5))))
	f.must(f.transact(update(store.Update{
		Set: []store.Attr{attr("a", store.Int(1)), attr("c", store.Int(2))}, Remove: []string{"b", "missing"},
		Add: []store.Increment{{Name: "n", N: -7}},
	})))
	f.wantItem(user("a"), store.NewItem(attr("a", store.Int(1)), attr("c", store.Int(2)), attr("n", store.Int(-2))))
	f.must(f.transact(update(store.Update{Remove: []string{"a", "c", "n"}})))
	f.wantItem(user("a"), store.NewItem())
}

func increase(k store.Key, by int64) store.Write {
	return store.Write{Op: store.OpUpdate, Key: k, Update: store.Update{Add: []store.Increment{{Name: "n", N: by}}}}
}

func testUpdateErrors(f *fixture) {
	f.must(f.transact(put(user("a"), store.NewItem(attr("n", store.String("x"))))))
	f.wantInvalid(f.transact(put(user("b"), item(1)), increase(user("a"), 1)), "adding to a string")
	f.wantItem(user("b"), nil)
	// Conditions come first, wherever they stand.
	failing := store.Write{Op: store.OpCheck, Key: user("b"), Cond: store.Exists(), Name: "b"}
	f.wantFailures(f.transact(increase(user("a"), 1), failing), "b")
	f.wantFailures(f.transact(failing, increase(user("a"), 1)), "b")
}

func testOverflow(f *fixture) {
	f.must(f.transact(put(user("a"), item(math.MaxInt64))))
	f.wantInvalid(f.transact(put(user("b"), item(1)), increase(user("a"), 1)), "overflow")
	f.wantItem(user("b"), nil)
	f.must(f.transact(put(user("a"), item(math.MinInt64))))
	f.wantInvalid(f.transact(increase(user("a"), -1)), "underflow")
}

func testConditions(f *fixture) {
	f.must(f.transact(put(user("is"),
		store.NewItem(attr("n", store.Int(5)), attr("s", store.String("m")), attr("b", store.Bool(true))))))
	none := store.Condition{}
	for _, c := range []struct {
		key  string
		cond store.Condition
		want bool
	}{
		{"is", store.Exists(), true}, {"is", store.Absent(), false}, {"no", store.Exists(), false},
		{"no", store.Absent(), true},
		{"is", none.Eq("n", store.Int(5)), true}, {"is", none.Eq("n", store.Int(4)), false},
		{"is", none.Eq("n", store.String("5")), false},
		{"is", none.Eq("x", store.Int(5)), false}, {"no", none.Eq("n", store.Int(5)), false},
		{"is", none.Ne("n", store.Int(5)), false}, {"is", none.Ne("n", store.Int(4)), true},
		{"is", none.Ne("x", store.Int(5)), true}, {"no", none.Ne("n", store.Int(5)), true},
		{"is", none.Lt("n", store.Int(6)), true}, {"is", none.Lt("n", store.Int(5)), false},
		{"is", none.Lt("x", store.Int(5)), false}, {"no", none.Lt("n", store.Int(5)), false},
		{"is", none.Gt("n", store.Int(4)), true}, {"is", none.Gt("n", store.Int(5)), false},
		{"is", none.Gt("x", store.Int(5)), false},
		{"is", none.Lt("s", store.String("n")), true}, {"is", none.Gt("s", store.String("l")), true},
		{"is", none.Lt("n", store.String("z")), false},
		{"is", none.Le("n", store.Int(5)), true}, {"is", none.Le("n", store.Int(4)), false},
		{"is", none.Le("s", store.String("m")), true}, {"is", none.Le("x", store.Int(5)), false},
		{"is", none.Without("x"), true}, {"is", none.Without("n"), false}, {"no", none.Without("n"), true},
		{"is", store.Exists().Without("x").Lt("n", store.Int(6)).Eq("b", store.Bool(true)), true},
		{"is", store.Exists().Without("x").Lt("n", store.Int(5)), false},
	} {
		w := store.Write{Op: store.OpCheck, Key: user(c.key), Cond: c.cond, Name: "c"}
		err := f.transact(w)
		if c.want {
			f.must(err)
		} else {
			f.wantFailures(err, "c")
		}
	}
}

func testAllFailures(f *fixture) {
	f.must(f.transact(put(user("a"), item(1)), put(user("c"), item(3))))
	check := func(k string, c store.Condition, name string) store.Write {
		return store.Write{Op: store.OpCheck, Key: user(k), Cond: c, Name: name}
	}
	err := f.transact(
		check("c", store.Absent(), "third"), check("x", store.Absent(), "fine"), check("b", store.Exists(), "second"),
		check("a", store.Absent(), "first"),
	)
	failed := f.wantFailures(err, "third", "second", "first")
	for i, want := range []store.Item{item(3), nil, item(1)} {
		if !equal(failed.Failures[i].Current, want) {
			f.Fatalf("failure %d shows %v, want %v", i, failed.Failures[i].Current, want)
		}
	}
	if failed.Failures[0].Index != 0 || failed.Failures[1].Index != 2 || failed.Failures[2].Index != 3 {
		f.Fatalf("indexes of %+v", failed.Failures)
	}
}

func testAtomic(f *fixture) {
	f.must(f.transact(put(user("a"), item(1))))
	err := f.transact(
		put(user("b"), item(2)), store.Write{Op: store.OpDelete, Key: user("a")},
		store.Write{Op: store.OpPut, Key: user("c"), Item: item(3), Cond: store.Exists(), Name: "c"},
	)
	f.wantFailures(err, "c")
	f.wantItem(user("a"), item(1))
	f.wantItem(user("b"), nil)
}

func testCheck(f *fixture) {
	f.must(f.transact(put(user("a"), item(1))))
	f.must(f.transact(store.Write{Op: store.OpCheck, Key: user("a"), Cond: store.Exists(), Name: "a"}))
	f.wantItem(user("a"), item(1))
}

func testLimits(f *fixture) {
	many := func(n int) (list []store.Write) {
		for i := range n {
			list = append(list, put(user(fmt.Sprint("u", i)), item(1)))
		}
		return list
	}
	f.must(f.transact(many(100)...))
	f.wantInvalid(f.transact(many(101)...), "too many writes")
	f.wantInvalid(f.transact(), "no writes")
	f.wantInvalid(f.transact(put(user("a"), item(1)), put(user("a"), item(2))), "an item twice")
	f.wantInvalid(f.transact(append(many(30), put(user("u7"), item(2)))...), "an item twice among many")
	big := store.NewItem(attr("s", store.String(strings.Repeat("x", 400<<10))))
	f.wantInvalid(f.transact(put(user("a"), big)), "an item too large")
	fits := store.NewItem(attr("s", store.String(strings.Repeat("x", 400<<10-100))))
	f.must(f.transact(put(user("a"), fits)))
	f.wantInvalid(f.transact(store.Write{Op: store.OpUpdate, Key: user("a"),
		Update: store.Update{Set: []store.Attr{attr("t", store.String(strings.Repeat("x", 100)))}}}),
		"an update makes it too large")
	var large []store.Write
	for i := range 11 {
		large = append(large, put(user(string(rune('a'+i))), fits))
	}
	f.wantInvalid(f.transact(large...), "a plan too large")
	for what, k := range map[string]store.Key{
		"empty key": user(""), "zero byte": user("a\x00b"), "long key": user(strings.Repeat("k", 1025)),
		"bad UTF-8":        user("\xff"),
		"sort key missing": message("c", ""), "sort key too many": {Table: store.Users, PK: "a", SK: "b"},
		"unknown table": {Table: "nope", PK: "a"},
	} {
		f.wantInvalid(f.transact(put(k, item(1))), what)
		_, err := f.Store.Get(f.ctx, k, store.Eventual)
		f.wantInvalid(err, what)
	}
	for what, w := range map[string]store.Write{
		"no name":           {Op: store.OpPut, Key: user("a"), Item: item(1), Cond: store.Absent()},
		"check of nothing":  {Op: store.OpCheck, Key: user("a")},
		"put of nothing":    {Op: store.OpPut, Key: user("a")},
		"empty update":      {Op: store.OpUpdate, Key: user("a")},
		"unknown operation": {Op: 99, Key: user("a")},
		"attribute twice": {Op: store.OpUpdate, Key: user("a"),
			Update: store.Update{Set: []store.Attr{attr("n", store.Int(1))}, Remove: []string{"n"}}},
		"expiry as text":    put(user("a"), store.NewItem(attr(store.ExpiresAtField, store.String("soon")))),
		"attribute without": put(user("a"), store.NewItem(attr("n", store.Value{}))),
		"equal attributes":  put(user("a"), store.NewItem(attr("n", store.Int(1)), attr("n", store.Int(2)))),
		"item on a delete":  {Op: store.OpDelete, Key: user("a"), Item: item(1)},
		"update on a put":   {Op: store.OpPut, Key: user("a"), Item: item(1), Update: store.Update{Remove: []string{"n"}}},
		"text not UTF-8":    put(user("a"), store.NewItem(attr("s", store.String("\xff")))),
		"list not UTF-8":    put(user("a"), store.NewItem(attr("s", store.List([]string{"\xff"})))),
		"name not UTF-8":    put(user("a"), store.NewItem(attr("\xff", store.Int(1)))),
		"no attribute name": put(user("a"), store.NewItem(attr("", store.Int(1)))),
		"no expiry here":    put(user("a"), store.NewItem(attr(store.ExpiresAtField, store.Int(1)))),
		"order of booleans": {Op: store.OpDelete, Key: user("a"), Cond: store.Condition{}.Lt("b", store.Bool(true)),
			Name: "x"},
		"unknown test": {Op: store.OpDelete, Key: user("a"), Cond: store.Condition{{Test: 99, Attr: "n"}}, Name: "x"},
		"condition without": {Op: store.OpPut, Key: user("a"), Item: item(1), Cond: store.Condition{}.Eq("n", store.Value{}),
			Name: "x"},
	} {
		f.wantInvalid(f.transact(w), what)
	}
	f.wantInvalid(f.Store.Transact(f.ctx, store.Plan{Writes: many(1), Token: strings.Repeat("t", 37)}), "long token")
}

func testBatchGet(f *fixture) {
	f.must(f.transact(put(user("a"), item(1)), put(message("c", "1"), item(2))))
	got, err := f.Store.BatchGet(f.ctx, []store.Key{message("c", "1"), user("none"), user("a")}, store.Strong)
	f.must(err)
	if len(got) != 3 || !equal(got[0], item(2)) || got[1] != nil || !equal(got[2], item(1)) {
		f.Fatalf("got %v", got)
	}
	_, err = f.Store.BatchGet(f.ctx, []store.Key{user("a"), user("a")}, store.Strong)
	f.wantInvalid(err, "a key twice")
	_, err = f.Store.BatchGet(f.ctx, nil, store.Strong)
	f.wantInvalid(err, "no keys")
	var keys []store.Key
	for i := range 101 {
		keys = append(keys, user(fmt.Sprint(i)))
	}
	_, err = f.Store.BatchGet(f.ctx, keys, store.Strong)
	f.wantInvalid(err, "too many keys")
	_, err = f.Store.BatchGet(f.ctx, keys[1:], store.Strong)
	f.must(err)
}

func testBatchWrite(f *fixture) {
	f.must(f.transact(put(user("a"), item(1))))
	f.must(f.Store.BatchWrite(f.ctx, []store.Write{put(user("b"), item(2)), {Op: store.OpDelete, Key: user("a")}}))
	f.wantItem(user("a"), nil)
	f.wantItem(user("b"), item(2))
	var many []store.Write
	for i := range 26 {
		many = append(many, put(user(fmt.Sprint(i)), item(1)))
	}
	f.wantInvalid(f.Store.BatchWrite(f.ctx, many), "too many")
	f.must(f.Store.BatchWrite(f.ctx, many[1:]))
	f.wantInvalid(f.Store.BatchWrite(f.ctx, nil), "none")
	f.wantInvalid(f.Store.BatchWrite(f.ctx,
		[]store.Write{{Op: store.OpPut, Key: user("x"), Item: item(1), Cond: store.Absent(), Name: "x"}}), "a condition")
	f.wantInvalid(f.Store.BatchWrite(f.ctx,
		[]store.Write{{Op: store.OpCheck, Key: user("x"), Cond: store.Absent(), Name: "x"}}), "a check")
}
