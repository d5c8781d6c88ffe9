package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
)

func wantInvalid(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrInvalid) {
		t.Errorf("%s: got %v, want ErrInvalid", what, err)
	}
}

var (
	user    = store.Key{Table: store.Users, PK: "a"}
	request = store.Key{Table: store.IdempotencyKeys, PK: "a"}
)

func put(k store.Key, attrs ...store.Attr) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(attrs...)}
}

func puts(n int) []store.Write {
	var list []store.Write
	for i := range n {
		list = append(list, put(store.Key{Table: store.Users, PK: fmt.Sprint(i)}))
	}
	return list
}

func TestKeys(t *testing.T) {
	long := strings.Repeat("k", 1024)
	for _, k := range []store.Key{
		user, {Table: store.Users, PK: long}, {Table: store.Messages, PK: long, SK: long},
		{Table: store.Messages, PK: "a\x01", SK: "☕"},
	} {
		if err := k.Validate(); err != nil {
			t.Errorf("%.50s: %v", k, err)
		}
	}
	for what, k := range map[string]store.Key{
		"no table": {PK: "a"}, "unknown table": {Table: "nope", PK: "a"}, "no partition": {Table: store.Users},
		"long": {Table: store.Users, PK: long + "k"}, "zero byte": {Table: store.Users, PK: "a\x00"},
		"not UTF-8":             {Table: store.Users, PK: "\xc3"},
		"sort key without need": {Table: store.Users, PK: "a", SK: "b"}, "no sort key": {Table: store.Messages, PK: "a"},
		"long sort key":         {Table: store.Messages, PK: "a", SK: long + "k"},
		"zero byte in sort key": {Table: store.Messages, PK: "a", SK: "\x00"},
	} {
		wantInvalid(t, what, k.Validate())
	}
}

func TestWrites(t *testing.T) {
	update := func(k store.Key, u store.Update) store.Write {
		return store.Write{Op: store.OpUpdate, Key: k, Update: u}
	}
	when := func(c store.Condition) store.Write {
		return store.Write{Op: store.OpCheck, Key: user, Cond: c, Name: "x"}
	}
	expiry := attr(store.ExpiresAtField, store.Int(1))
	none := store.Condition{}
	for what, w := range map[string]store.Write{
		"empty item": put(user), "expiry": put(request, expiry), "delete": {Op: store.OpDelete, Key: user},
		"expiry set":     update(request, store.Update{Set: []store.Attr{expiry}}),
		"expiry removed": update(request, store.Update{Remove: []string{store.ExpiresAtField}}),
		"expiry put off": update(request, store.Update{Add: []store.Increment{{Name: store.ExpiresAtField, N: 60}}}),
		"check": when(store.Exists().Without("x").Eq("b", store.Bytes(nil)).Lt("s", store.String("")).Le("n",
			store.Int(0))),
	} {
		if err := w.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	many := store.Update{}
	for i := range 101 {
		many.Remove = append(many.Remove, fmt.Sprint("a", i))
	}
	for what, w := range map[string]store.Write{
		"no operation": {Key: user}, "unknown operation": {Op: store.OpCheck + 1, Key: user}, "bad key": put(store.Key{}),
		"put without an item": {Op: store.OpPut, Key: user},
		"delete with an item": {Op: store.OpDelete, Key: user, Item: store.Item{}},
		"put with an update":  {Op: store.OpPut, Key: user, Item: store.Item{}, Update: store.Update{Remove: []string{"a"}}},
		"update with an item": {Op: store.OpUpdate, Key: user, Item: store.Item{},
			Update: store.Update{Remove: []string{"a"}}},
		"unsorted": {Op: store.OpPut, Key: user,
			Item: store.Item{attr("b", store.Int(1)), attr("a", store.Int(1))}},
		"name twice": {Op: store.OpPut, Key: user,
			Item: store.Item{attr("a", store.Int(1)), attr("a", store.Int(1))}},
		"no value":             put(user, attr("a", store.Value{})),
		"no name":              put(user, attr("", store.Int(1))),
		"long name":            put(user, attr(strings.Repeat("n", 256), store.Int(1))),
		"name not UTF-8":       put(user, attr("\xff", store.Int(1))),
		"text not UTF-8":       put(user, attr("a", store.String("\xff"))),
		"list not UTF-8":       put(user, attr("a", store.List([]string{"a", "\xff"}))),
		"expiry is text":       put(request, attr(store.ExpiresAtField, store.String("1"))),
		"expiry not here":      put(user, expiry),
		"expiry set not here":  update(user, store.Update{Set: []store.Attr{expiry}}),
		"expiry add not here":  update(user, store.Update{Add: []store.Increment{{Name: store.ExpiresAtField, N: 1}}}),
		"empty update":         update(user, store.Update{}),
		"update of too many":   update(user, many),
		"set and removed":      update(user, store.Update{Set: []store.Attr{attr("a", store.Int(1))}, Remove: []string{"a"}}),
		"removed twice":        update(user, store.Update{Remove: []string{"a", "a"}}),
		"removed and added":    update(user, store.Update{Remove: []string{"a"}, Add: []store.Increment{{Name: "a", N: 1}}}),
		"set to nothing":       update(user, store.Update{Set: []store.Attr{attr("a", store.Value{})}}),
		"remove without name":  update(user, store.Update{Remove: []string{""}}),
		"add without name":     update(user, store.Update{Add: []store.Increment{{N: 1}}}),
		"check of nothing":     {Op: store.OpCheck, Key: user, Name: "x"},
		"condition, no name":   {Op: store.OpDelete, Key: user, Cond: store.Exists()},
		"unknown test":         when(store.Condition{{}}),
		"compare with nothing": when(none.Eq("a", store.Value{})),
		"order of booleans":    when(none.Lt("a", store.Bool(true))),
		"order of bytes":       when(none.Le("a", store.BytesOf("a"))),
		"compare not UTF-8":    when(none.Eq("a", store.String("\xff"))),
		"order not UTF-8":      when(none.Gt("a", store.String("\xff"))),
		"condition on no name": when(none.Without("")),
		"too many terms":       when(make(store.Condition, 101)),
	} {
		wantInvalid(t, what, w.Validate())
	}
}

func TestPlans(t *testing.T) {
	for what, p := range map[string]store.Plan{
		"the most": {Writes: puts(100), Token: strings.Repeat("t", 36)}, "few": {Writes: puts(1)},
		"one partition": {Writes: []store.Write{put(store.Key{Table: store.Messages, PK: "a", SK: "1"}),
			put(store.Key{Table: store.Messages, PK: "a", SK: "2"})}},
		"one key in two tables": {Writes: []store.Write{put(store.Key{Table: store.Users, PK: "a"}),
			put(store.Key{Table: store.Chats, PK: "a"})}},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	large := puts(11)
	for i := range large {
		large[i].Item = store.NewItem(attr("s", store.Bytes(make([]byte, 400<<10-100))))
	}
	for what, p := range map[string]store.Plan{
		"empty": {}, "too many": {Writes: puts(101)},
		"long token":       {Writes: puts(1), Token: strings.Repeat("t", 37)},
		"twice":            {Writes: []store.Write{put(user), {Op: store.OpDelete, Key: user}}},
		"twice among many": {Writes: append(puts(20), puts(1)...)},
		"too large":        {Writes: large}, "a bad write": {Writes: append(puts(3), store.Write{})},
	} {
		wantInvalid(t, what, p.Validate())
	}
	p := store.Plan{Writes: large[:10]}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
}

func TestItemLimit(t *testing.T) {
	blob := func(n int) store.Write { return put(user, attr("s", store.Bytes(make([]byte, n)))) }
	fits, over := blob(400<<10-100), blob(400<<10-10)
	if err := fits.Validate(); err != nil {
		t.Error(err)
	}
	wantInvalid(t, "with its key too large", over.Validate())
}

func TestBatches(t *testing.T) {
	if err := store.ValidateBatch(append(puts(24),
		store.Write{Op: store.OpDelete, Key: user})); err != nil {
		t.Error(err)
	}
	conditional := put(user)
	conditional.Cond, conditional.Name = store.Absent(), "x"
	for what, writes := range map[string][]store.Write{
		"empty": nil, "too many": puts(26), "condition": {conditional}, "twice": {put(user), put(user)},
		"update": {{Op: store.OpUpdate, Key: user, Update: store.Update{Remove: []string{"a"}}}},
		"check":  {{Op: store.OpCheck, Key: user, Cond: store.Exists(), Name: "x"}}, "bad key": {put(store.Key{})},
	} {
		wantInvalid(t, what, store.ValidateBatch(writes))
	}
	var keys []store.Key
	for _, w := range puts(101) {
		keys = append(keys, w.Key)
	}
	if err := store.ValidateKeys(keys[1:]); err != nil {
		t.Error(err)
	}
	for what, keys := range map[string][]store.Key{"empty": nil, "too many": keys, "twice": {user, request, user},
		"bad": {{}}} {
		wantInvalid(t, what, store.ValidateKeys(keys))
	}
}

func TestQueriesAndScans(t *testing.T) {
	q := store.Query{Table: store.Messages, PK: "a", From: "1", To: "2", Cursor: "1"}
	if err := q.Validate(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*store.Query){
		"unknown table": func(q *store.Query) { q.Table = "nope" },
		"no sort key":   func(q *store.Query) { q.Table = store.Users },
		"no partition":  func(q *store.Query) { q.PK = "" }, "bad from": func(q *store.Query) { q.From = "\x00" },
		"bad to":     func(q *store.Query) { q.To = "\xff" },
		"bad cursor": func(q *store.Query) { q.Cursor = strings.Repeat("x", 1025) },
	} {
		bad := q
		change(&bad)
		wantInvalid(t, what, bad.Validate())
	}
	s := store.Scan{Table: store.Messages, Segment: 2, Segments: 3, Cursor: store.ScanCursor(store.Key{PK: "a", SK: "b"})}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if k, err := s.After(); err != nil || k != (store.Key{Table: store.Messages, PK: "a", SK: "b"}) {
		t.Errorf("the cursor is after %v, %v", k, err)
	}
	for what, change := range map[string]func(*store.Scan){
		"unknown table": func(s *store.Scan) { s.Table = "nope" }, "segment too high": func(s *store.Scan) { s.Segment = 3 },
		"negative segment": func(s *store.Scan) { s.Segment = -1 }, "no segments": func(s *store.Scan) { s.Segments = 0 },
		"too many segments":       func(s *store.Scan) { s.Segments = 1025 },
		"bad cursor":              func(s *store.Scan) { s.Cursor = "a" },
		"cursor of another table": func(s *store.Scan) { s.Table = store.Users },
		"cursor in three parts":   func(s *store.Scan) { s.Cursor = "a\x00b\x00c" },
	} {
		bad := s
		change(&bad)
		wantInvalid(t, what, bad.Validate())
	}
}

// A scan cursor is taken apart as it was put together, and nothing else is taken.
func FuzzScanCursor(f *testing.F) {
	for _, c := range []string{"a\x00", "a\x00b", "a", "\x00", "a\x00b\x00", "\xff\x00a"} {
		f.Add(c, true)
		f.Add(c, false)
	}
	f.Fuzz(func(t *testing.T, cursor string, sorted bool) {
		table := store.Users
		if sorted {
			table = store.Messages
		}
		s := store.Scan{Table: table, Segments: 1, Cursor: cursor}
		err := s.Validate()
		if cursor == "" || err != nil {
			if err != nil && !errors.Is(err, store.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		k, err := s.After()
		if err != nil || k.Validate() != nil || store.ScanCursor(k) != cursor {
			t.Fatalf("%q is %v, %v", cursor, k, err)
		}
	})
}

func TestExpired(t *testing.T) {
	it := store.NewItem(attr(store.ExpiresAtField, store.Int(100)))
	for at, want := range map[int64]bool{99: false, 100: true, 101: true} {
		if store.Expired(it, at) != want {
			t.Errorf("expired at %d: %v", at, !want)
		}
	}
	if store.Expired(nil, 1<<62) || store.Expired(store.NewItem(attr("n", store.Int(1))), 1<<62) {
		t.Error("expired without a time")
	}
}

// Segments divide partitions evenly enough, and a partition is in exactly one.
func TestSegments(t *testing.T) {
	const n = 8
	var count [n]int
	for i := range 8000 {
		count[store.Segment(fmt.Sprint("chat_", i), n)]++
	}
	for s, c := range count {
		if c < 500 || c > 1500 {
			t.Errorf("segment %d has %d of 8000 partitions", s, c)
		}
	}
}

func TestPager(t *testing.T) {
	now := time.Unix(100, 0)
	row := func(sk string, bytes int, expires int64) store.Row {
		it := store.NewItem(attr("s", store.Bytes(make([]byte, bytes))))
		if expires != 0 {
			it = store.NewItem(append(it, attr(store.ExpiresAtField, store.Int(expires)))...)
		}
		return store.Row{Key: store.Key{Table: store.DeliveryState, PK: "u", SK: sk}, Item: it}
	}
	p := store.NewPager(2, now)
	for i, x := range []struct {
		row  store.Row
		more bool
	}{{row("1", 1, 0), true}, {row("2", 1, 50), true}, {row("3", 1, 150), true}, {row("4", 1, 100), true},
		{row("5", 1, 0), false}} {
		if p.Add(x.row, x.row.Key.SK) != x.more {
			t.Fatalf("row %d", i+1)
		}
	}
	if len(p.Page.Rows) != 2 || p.Page.Cursor != "3" || p.Evaluated() != 4 {
		t.Fatalf("%d rows, cursor %q, %d evaluated", len(p.Page.Rows), p.Page.Cursor, p.Evaluated())
	}
	p = store.NewPager(0, now)
	n := 0
	for p.Add(row(fmt.Sprint(n), (1<<20)/4, 50), fmt.Sprint(n)) {
		n++
	}
	if len(p.Page.Rows) != 0 || n < 3 || n > 5 || p.Page.Cursor != fmt.Sprint(n-1) {
		t.Fatalf("%d rows of %d, cursor %q", len(p.Page.Rows), n, p.Page.Cursor)
	}
	if p = store.NewPager(1, now); !p.Add(row("1", 1, 0), "1") || p.Page.Cursor != "" {
		t.Fatal("a last page has a cursor")
	}
}

// Values do not share memory with what they were made of or what is read of them.
func TestValuesAreImmutable(t *testing.T) {
	blob, list := []byte("abc"), []string{"a", "b"}
	b, l := store.Bytes(blob), store.List(list)
	blob[0], list[0] = 'x', "x"
	b.Blob()[1], l.Strings()[1] = 'x', "x"
	if b.Str() != "abc" || l.Strings()[0] != "a" || l.Strings()[1] != "b" {
		t.Fatalf("%q, %v", b.Str(), l.Strings())
	}
	attrs := []store.Attr{attr("b", store.Int(1)), attr("a", store.Int(2))}
	it := store.NewItem(attrs...)
	attrs[0].Name = "x"
	if it.Get("b").Int64() != 1 || it[0].Name != "a" {
		t.Fatalf("%v", it)
	}
}

// The place of a table in the list is part of the embedded engine's format: it must
// never change. New tables are added here and there at the end.
func TestTablesKeepTheirPlace(t *testing.T) {
	const want = "users chats chat_counters chat_memberships delivery_state messages events outbox idempotency_keys direct_chat_index " +
		"pending_members leases meta consumer_attempts dead_letters schemas sessions otp_requests notifications topics subscriptions audit " +
		"search_events projections identifiers people revocations services"
	var got []string
	for _, d := range store.Tables() {
		got = append(got, string(d.Name))
		if found, ok := store.Lookup(d.Name); !ok || found != d {
			t.Errorf("%s is looked up as %+v", d.Name, found)
		}
	}
	if strings.Join(got, " ") != want {
		t.Errorf("tables %v", got)
	}
}
