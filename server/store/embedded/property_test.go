package embedded

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// TestSameAsMap runs random plans, reads, clock steps and restarts on this engine
// and on the map engine: they must give the same answers.
func TestSameAsMap(t *testing.T) {
	racetest.SkipSerial(t)
	rapid.Check(t, func(t *rapid.T) {
		clock := storetest.NewClock()
		mem := vfs.NewCrashableMem()
		o := Options{Dir: "/data", FS: mem, Clock: clock.Now}
		real, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = real.Close() }()
		oracle := storetest.NewMemory(clock.Now)
		ctx := context.Background()
		same := func(what string, a, b any, errA, errB error) {
			if sa, sb := fmt.Sprint(a, failure(errA)), fmt.Sprint(b, failure(errB)); sa != sb {
				t.Fatalf("%s:\n engine %s\n map    %s", what, sa, sb)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"transact": func(t *rapid.T) {
				p := store.Plan{Writes: rapid.SliceOfNDistinct(genWrite(clock.Now()), 1, 6,
					func(w store.Write) store.Key { return w.Key }).Draw(t, "writes")}
				same("transact", nil, nil, real.Transact(ctx, p), oracle.Transact(ctx, p))
			},
			"batch": func(t *rapid.T) {
				writes := rapid.SliceOfNDistinct(genWrite(clock.Now()), 1, 4,
					func(w store.Write) store.Key { return w.Key }).Draw(t, "writes")
				for i := range writes {
					if writes[i].Cond = nil; writes[i].Op != store.OpPut {
						writes[i] = store.Write{Op: store.OpDelete, Key: writes[i].Key}
					}
				}
				same("batch write", nil, nil, real.BatchWrite(ctx, writes), oracle.BatchWrite(ctx, writes))
			},
			"get": func(t *rapid.T) {
				keys := rapid.SliceOfNDistinct(genKey, 1, 5, rapid.ID).Draw(t, "keys")
				a, errA := real.BatchGet(ctx, keys, store.Strong)
				b, errB := oracle.BatchGet(ctx, keys, store.Strong)
				same("batch get", a, b, errA, errB)
				x, errX := real.Get(ctx, keys[0], store.Eventual)
				same("get", x, b[0], errX, nil)
			},
			"query": func(t *rapid.T) {
				q := store.Query{
					Table: rapid.SampledFrom([]store.Table{store.Messages, store.DeliveryState}).Draw(t, "table"),
					PK:    genPK.Draw(t, "pk"),
					From:  genBound.Draw(t, "from"), To: genBound.Draw(t, "to"), Cursor: genBound.Draw(t, "cursor"),
					Descending: rapid.Bool().Draw(t, "descending"), Limit: rapid.IntRange(0, 3).Draw(t, "limit"),
				}
				a, errA := real.Query(ctx, q)
				b, errB := oracle.Query(ctx, q)
				same("query", a, b, errA, errB)
			},
			"scan": func(t *rapid.T) {
				n := rapid.IntRange(1, 3).Draw(t, "segments")
				s := store.Scan{
					Table: genKey.Draw(t, "table").Table, Segments: n, Segment: rapid.IntRange(0, n-1).Draw(t, "segment"),
					Limit: rapid.IntRange(0, 3).Draw(t, "limit"),
				}
				if rapid.Bool().Draw(t, "continued") {
					s.Cursor = store.ScanCursor(genKey.Draw(t, "cursor"))
				}
				a, errA := real.Scan(ctx, s)
				b, errB := oracle.Scan(ctx, s)
				same("scan", a, b, errA, errB)
			},
			"clock": func(t *rapid.T) {
				clock.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			},
			"sweep": func(t *rapid.T) {
				if _, err := real.sweep(3); err != nil {
					t.Fatal(err)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := real.Close(); err != nil {
					t.Fatal(err)
				}
				if real, err = Open(o); err != nil {
					t.Fatal(err)
				}
			},
			"lose power": func(t *rapid.T) {
				mem = mem.CrashClone(vfs.CrashCloneCfg{})
				if err := real.Close(); err != nil {
					t.Fatal(err)
				}
				o.FS = mem
				if real, err = Open(o); err != nil {
					t.Fatal(err)
				}
			},
			"clone": func(*rapid.T) { oracle = oracle.Clone() },
		})
	})
}

// failure describes an error as the contract does: the same for every engine.
func failure(err error) string {
	var failed *store.ConditionError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failed):
		return fmt.Sprintf("%+v", failed.Failures)
	case errors.Is(err, store.ErrInvalid):
		return "invalid"
	}
	return err.Error()
}

var (
	genPK    = rapid.SampledFrom([]string{"a", "b", "a#", "\u00e9"})
	genSK    = rapid.SampledFrom([]string{"1", "2", "21", "3", "~"})
	genBound = rapid.SampledFrom([]string{"", "", "1", "2", "20", "3"})
	genKey   = rapid.Custom(func(t *rapid.T) store.Key {
		table := rapid.SampledFrom([]store.Table{store.Users, store.IdempotencyKeys, store.Messages,
			store.DeliveryState}).Draw(t, "table")
		k := store.Key{Table: table, PK: genPK.Draw(t, "pk")}
		if d, _ := store.Lookup(table); d.SortKey {
			k.SK = genSK.Draw(t, "sk")
		}
		return k
	})
	genName  = rapid.SampledFrom([]string{"n", "m", "x"})
	genValue = rapid.Custom(func(t *rapid.T) store.Value {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return store.String(rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "string"))
		case 1:
			return store.Bytes([]byte(rapid.SampledFrom([]string{"", "a"}).Draw(t, "bytes")))
		case 2:
			return store.Bool(rapid.Bool().Draw(t, "bool"))
		case 3:
			return store.List(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "list"))
		}
		return store.Int(rapid.Int64Range(-3, 3).Draw(t, "int"))
	})
	genTerm = rapid.Custom(func(t *rapid.T) store.Term {
		x := store.Term{
			Test: store.Test(rapid.IntRange(int(store.TestExists), int(store.TestAtMost)).Draw(t, "test")),
			Attr: genName.Draw(t, "attr"), Value: genValue.Draw(t, "value"),
		}
		switch x.Test {
		case store.TestLess, store.TestGreater, store.TestAtMost: // seldom of a kind that has no order
			if rapid.IntRange(0, 9).Draw(t, "integer") > 0 {
				x.Value = store.Int(rapid.Int64Range(-3, 3).Draw(t, "int"))
			}
		}
		return x
	})
)

func genWrite(now time.Time) *rapid.Generator[store.Write] {
	genAttrs := rapid.Custom(func(t *rapid.T) []store.Attr {
		var list []store.Attr
		for _, name := range rapid.SliceOfNDistinct(genName, 0, 3, rapid.ID).Draw(t, "names") {
			list = append(list, store.Attr{Name: name, Value: genValue.Draw(t, "value")})
		}
		return list
	})
	return rapid.Custom(func(t *rapid.T) store.Write {
		w := store.Write{Key: genKey.Draw(t, "key"),
			Op: store.Op(rapid.IntRange(int(store.OpPut), int(store.OpCheck)).Draw(t, "op"))}
		attrs := genAttrs.Draw(t, "attrs")
		if d, _ := store.Lookup(w.Key.Table); d.TTL && rapid.Bool().Draw(t, "expires") {
			at := now.Unix() + rapid.Int64Range(-20, 60).Draw(t, "at")
			attrs = append(attrs, store.Attr{Name: store.ExpiresAtField, Value: store.Int(at)})
		}
		switch w.Op {
		case store.OpPut:
			w.Item = store.NewItem(attrs...)
		case store.OpUpdate:
			w.Update.Set = attrs
			if rapid.Bool().Draw(t, "add") {
				name := rapid.SampledFrom([]string{"count", "n"}).Draw(t, "increased") // n may be of any kind, or set, too
				w.Update.Add = []store.Increment{{Name: name, N: rapid.Int64Range(-2, 2).Draw(t, "by")}}
			}
			if rapid.Bool().Draw(t, "remove") {
				w.Update.Remove = []string{rapid.SampledFrom([]string{"m", "x", "count2"}).Draw(t, "removed")}
			}
		}
		if w.Cond = rapid.SliceOfN(genTerm, 0, 2).Draw(t, "condition"); len(w.Cond) > 0 {
			w.Name = "cond " + w.Key.String()
		}
		return w
	})
}
