package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
)

func (f *fixture) fill(chat string, n int) {
	f.Helper()
	for from := 1; from <= n; from += 100 {
		var writes []store.Write
		for i := from; i <= min(n, from+100-1); i++ {
			writes = append(writes, put(message(chat, fmt.Sprintf("%04d", i)), item(int64(i))))
		}
		f.must(f.transact(writes...))
	}
}

func (f *fixture) query(q store.Query) (sks []string, cursor string) {
	f.Helper()
	q.Table, q.Consistency = store.Messages, store.Strong
	p, err := f.Store.Query(f.ctx, q)
	f.must(err)
	for _, r := range p.Rows {
		sks = append(sks, r.Key.SK)
	}
	return sks, p.Cursor
}

func testQuery(f *fixture) {
	f.fill("c", 9)
	for _, c := range []struct {
		q    store.Query
		want string
	}{
		{store.Query{}, "0001 0002 0003 0004 0005 0006 0007 0008 0009"},
		{store.Query{From: "0003", To: "0005"}, "0003 0004 0005"},
		{store.Query{From: "0003", To: "0005", Descending: true}, "0005 0004 0003"},
		{store.Query{From: "00031", To: "00049"}, "0004"},
		{store.Query{From: "0008"}, "0008 0009"},
		{store.Query{To: "0002"}, "0001 0002"},
		{store.Query{To: "0002", Descending: true}, "0002 0001"},
		{store.Query{From: "0005", To: "0003"}, ""},
		{store.Query{Limit: 2}, "0001 0002"},
		{store.Query{Limit: 2, Descending: true}, "0009 0008"},
		{store.Query{Limit: 2, Cursor: "0004"}, "0005 0006"},
		{store.Query{Limit: 2, Cursor: "0004", Descending: true}, "0003 0002"},
		{store.Query{From: "0006", Cursor: "0004"}, "0006 0007 0008 0009"},
	} {
		c.q.PK = "c"
		if got, _ := f.query(c.q); strings.Join(got, " ") != c.want {
			f.Fatalf("%+v: got %v, want %s", c.q, got, c.want)
		}
	}
	_, err := f.Store.Query(f.ctx, store.Query{Table: store.Users, PK: "a"})
	f.wantInvalid(err, "query of a table without sort key")
	_, err = f.Store.Query(f.ctx, store.Query{Table: store.Messages})
	f.wantInvalid(err, "query without a partition")
	for what, q := range map[string]store.Query{
		"unknown table": {Table: "nope"}, "bad lower bound": {From: "\xff"}, "bad upper bound": {To: "a\x00b"},
		"bad cursor": {Cursor: "\x00"}, "long cursor": {Cursor: strings.Repeat("x", 1025)},
	} {
		q.PK = "c"
		if q.Table == "" {
			q.Table = store.Messages
		}
		_, err := f.Store.Query(f.ctx, q)
		f.wantInvalid(err, what)
	}
}

// testOrder checks that sort keys are in order of their bytes, for bytes of every kind.
func testOrder(f *fixture) {
	sks := []string{"\x01", "\x01\x01", "\x02", " ", "#", "0", "00", "1", "10", "2", "A", "a", "aa", "b", "~", "\x7f",
		"\u0080", "\u00e9", "\u4e2d", "\U0001f600", strings.Repeat("\U0001f600", 1024/4)}
	for i := range sks {
		k := message("c", sks[len(sks)-1-i])
		f.must(f.transact(put(k, item(int64(i)))))
	}
	if got, _ := f.query(store.Query{PK: "c"}); !slices.Equal(got, sks) {
		f.Fatalf("order %q", got)
	}
	if got, _ := f.query(store.Query{PK: "c", From: "#", To: "a"}); !slices.Equal(got, sks[4:12]) {
		f.Fatalf("from # to a: %q", got)
	}
	long := message(strings.Repeat("p", 1024), strings.Repeat("s", 1024))
	f.must(f.transact(put(long, item(7))))
	f.wantItem(long, item(7))
}

// testExpiredPages checks that a page may be empty and have a cursor: expired rows count as
// read, but do not show.
func testExpiredPages(f *fixture) {
	big := strings.Repeat("x", (1<<20)/4)
	at := f.Clock.Now().Unix() + 60
	for i := range 10 {
		it := store.NewItem(attr("s", store.String(big)), attr(store.ExpiresAtField, store.Int(at)))
		f.must(f.transact(put(store.Key{Table: store.DeliveryState, PK: "u", SK: fmt.Sprint("c", i)}, it)))
	}
	last := store.Key{Table: store.DeliveryState, PK: "u", SK: "d"}
	f.must(f.transact(put(last, item(1))))
	f.Clock.Add(time.Hour)
	var rows []store.Row
	pages := 0
	for cursor, first := "", true; first || cursor != ""; first = false {
		p, err := f.Store.Query(f.ctx, store.Query{Table: store.DeliveryState, PK: "u", Cursor: cursor, Limit: 1})
		f.must(err)
		rows, cursor = append(rows, p.Rows...), p.Cursor
		if pages++; pages > 20 {
			f.Fatal("no end of pages")
		}
	}
	if len(rows) != 1 || rows[0].Key != last {
		f.Fatalf("%d rows on %d pages", len(rows), pages)
	}
}

func testQueryPages(f *fixture) {
	f.fill("c", 250)
	for _, descending := range []bool{false, true} {
		for _, limit := range []int{1, 7, 250, 300, 0} {
			var got []string
			for cursor, first := "", true; first || cursor != ""; first = false {
				var page []string
				page, cursor = f.query(store.Query{PK: "c", Limit: limit, Cursor: cursor, Descending: descending})
				got = append(got, page...)
			}
			if descending {
				slices.Reverse(got)
			}
			if len(got) != 250 || !slices.IsSorted(got) {
				f.Fatalf("limit %d: %d rows", limit, len(got))
			}
		}
	}
	// A page ends at its size, too.
	big := store.NewItem(attr("s", store.String(strings.Repeat("x", (1<<20)/4))))
	for i := range 6 {
		f.must(f.transact(put(message("big", fmt.Sprint(i)), big)))
	}
	page, cursor := f.query(store.Query{PK: "big"})
	rest, end := f.query(store.Query{PK: "big", Cursor: cursor})
	if len(page) == 6 || len(page)+len(rest) != 6 || end != "" {
		f.Fatalf("pages of %d and %d rows", len(page), len(rest))
	}
}

func testQueryPartition(f *fixture) {
	for _, pk := range []string{"a", "ab", "a#", "b", "a\x01"} {
		f.must(f.transact(put(message(pk, "1"), item(1))))
	}
	if got, _ := f.query(store.Query{PK: "a"}); len(got) != 1 {
		f.Fatalf("partition a has %v", got)
	}
}

func testScan(f *fixture) {
	f.fill("c", 120)
	for i := range 50 {
		f.fill(fmt.Sprint("chat", i), 3)
	}
	f.must(f.transact(put(user("other table"), item(1))))
	for _, segments := range []int{1, 3, 40} {
		seen := map[store.Key]int{}
		for s := range segments {
			for cursor, first := "", true; first || cursor != ""; first = false {
				p, err := f.Store.Scan(f.ctx, store.Scan{Table: store.Messages, Segment: s, Segments: segments, Limit: 17,
					Cursor: cursor})
				f.must(err)
				for _, r := range p.Rows {
					seen[r.Key]++
					if !equal(r.Item, f.get(r.Key)) {
						f.Fatalf("scan shows %v for %s", r.Item, r.Key)
					}
				}
				cursor = p.Cursor
			}
		}
		if len(seen) != 270 {
			f.Fatalf("%d segments show %d rows", segments, len(seen))
		}
		for k, n := range seen {
			if n != 1 {
				f.Fatalf("%s came %d times", k, n)
			}
		}
	}
	_, err := f.Store.Scan(f.ctx, store.Scan{Table: store.Messages, Segment: 2, Segments: 2})
	f.wantInvalid(err, "segment out of range")
	for what, s := range map[string]store.Scan{
		"no segments": {}, "too many segments": {Segments: 1025},
		"negative segment": {Segments: 2, Segment: -1},
		"unknown table":    {Table: "nope", Segments: 1}, "bad cursor": {Segments: 1, Cursor: "nonsense"},
		"cursor of another table": {Table: store.Users, Segments: 1, Cursor: "a\x00b"},
	} {
		if s.Table == "" {
			s.Table = store.Messages
		}
		_, err := f.Store.Scan(f.ctx, s)
		f.wantInvalid(err, what)
	}
	// A page ends at its size, too, and the pages together are complete.
	big := store.NewItem(attr("s", store.String(strings.Repeat("x", (1<<20)/4))))
	for i := range 6 {
		f.must(f.transact(put(store.Key{Table: store.Chats, PK: fmt.Sprint(i)}, big)))
	}
	page, err := f.Store.Scan(f.ctx, store.Scan{Table: store.Chats, Segments: 1})
	f.must(err)
	rest, err := f.Store.Scan(f.ctx, store.Scan{Table: store.Chats, Segments: 1, Cursor: page.Cursor})
	f.must(err)
	if page.Cursor == "" || len(page.Rows)+len(rest.Rows) != 6 || rest.Cursor != "" {
		f.Fatalf("pages of %d and %d rows", len(page.Rows), len(rest.Rows))
	}
}

func testExpiry(f *fixture) {
	key := func(id string) store.Key { return store.Key{Table: store.IdempotencyKeys, PK: id} }
	row := store.Key{Table: store.DeliveryState, PK: "u", SK: "c"}
	expiring := func(d time.Duration) store.Item {
		return store.NewItem(attr("n", store.Int(1)), attr(store.ExpiresAtField, store.Int(f.Clock.Now().Add(d).Unix())))
	}
	f.must(f.transact(put(key("a"), expiring(time.Minute)), put(key("b"), expiring(time.Hour)),
		put(row, expiring(time.Minute))))
	f.wantItem(key("a"), expiring(time.Minute))
	again := store.Write{Op: store.OpPut, Key: key("a"), Item: expiring(time.Hour), Cond: store.Absent(), Name: "a"}
	f.wantFailures(f.transact(again), "a")
	f.Clock.Add(time.Minute)
	f.wantItem(key("a"), nil)
	got, err := f.Store.BatchGet(f.ctx, []store.Key{key("a"), key("b")}, store.Strong)
	f.must(err)
	if got[0] != nil || got[1] == nil {
		f.Fatalf("after expiry: %v", got)
	}
	p, err := f.Store.Query(f.ctx, store.Query{Table: store.DeliveryState, PK: "u", Consistency: store.Strong})
	f.must(err)
	s, err := f.Store.Scan(f.ctx, store.Scan{Table: store.IdempotencyKeys, Segments: 1})
	f.must(err)
	if len(p.Rows) != 0 || len(s.Rows) != 1 {
		f.Fatalf("query shows %v, scan %v", p.Rows, s.Rows)
	}
	f.wantFailures(f.transact(store.Write{Op: store.OpCheck, Key: key("a"), Cond: store.Exists(), Name: "gone"}), "gone")
	f.must(f.transact(again))
	// An update begins with nothing where the item has expired.
	f.must(f.transact(store.Write{Op: store.OpUpdate, Key: row,
		Update: store.Update{Set: []store.Attr{attr("x", store.Int(1))}}}))
	f.wantItem(row, store.NewItem(attr("x", store.Int(1))))
	f.Clock.Add(24 * time.Hour)
	f.wantItem(row, store.NewItem(attr("x", store.Int(1))))
}

func testReopen(f *fixture) {
	f.fill("c", 150)
	f.must(f.transact(store.Write{Op: store.OpDelete, Key: message("c", "0007")}))
	f.Store = f.Reopen()
	f.wantItem(message("c", "0007"), nil)
	f.wantItem(message("c", "0150"), item(150))
	if got, _ := f.query(store.Query{PK: "c"}); len(got) != 149 {
		f.Fatalf("%d rows after reopening", len(got))
	}
}
