package parked

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// rows parks keys: of group a three of one partition and one of another, of group b one.
func rows(t *testing.T, now time.Time) *storetest.Memory {
	t.Helper()
	st := storetest.NewMemory(time.Now)
	var writes []store.Write
	for n, p := range []table.Parked{
		{Group: "a", Topic: "t", Key: []byte("k1"), At: "t", Partition: 1, Records: 10, Bytes: 100},
		{Group: "a", Topic: "t", Key: []byte("k2"), At: "t", Partition: 1, Records: 20, Bytes: 100},
		{Group: "a", Topic: "t", Key: []byte("k3"), At: "t", Partition: 1, Records: 5, Bytes: 700},
		{Group: "a", Topic: "u", Key: []byte("k1"), At: "u", Partition: 1, Records: 30, Bytes: 10},
		{Group: "b", Topic: "t", Key: []byte("k1"), At: "t", Partition: 1, Records: 30, Bytes: 10},
	} {
		p.Since, p.ExpiresAt = now.Add(-time.Duration(n)*time.Minute).UnixMilli(), now.Add(time.Hour).Unix()
		writes = append(writes, store.Write{Op: store.OpPut, Key: p.RowKey(), Item: p.Item()})
	}
	testkit.Must(t, st.BatchWrite(t.Context(), writes))
	return st
}

// What is parked is counted over all groups, and held against the bounds by group and
// partition.
func TestWatch(t *testing.T) {
	now := time.Now()
	st := rows(t, now)
	for _, c := range []struct {
		bounds  Bounds
		fullest int64
	}{
		{Bounds{Keys: 4, Records: 100, Bytes: 1000}, 90}, // bytes
		{Bounds{Keys: 3, Records: 100, Bytes: 1000}, 100},
		{Bounds{Keys: 10, Records: 40, Bytes: 2000}, 87},
		{Bounds{}, 1}, // 3 of 200 keys
	} {
		w := &Watch{Store: st, Clock: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler),
			Bounds: c.bounds}
		testkit.Must(t, w.count(t.Context()))
		got := w.Standing()
		got.Oldest = got.Oldest.Round(time.Second)
		if want := (Standing{Keys: 5, Records: 95, Oldest: 4 * time.Minute, Fullest: c.fullest}); got != want {
			t.Errorf("%+v: %+v, not %+v", c.bounds, got, want)
		}
	}
}

// Pages of any size have every key once, and the last one has no position to continue from.
func TestPages(t *testing.T) {
	st := rows(t, time.Now())
	for _, s := range []Select{
		{}, {Group: "a"}, {Group: "a", Topic: "t"}, {Key: "k1"}, {Group: "a", Key: "k3"}, {Group: "c"},
	} {
		var want []string
		list, err := List(t.Context(), st, s)
		testkit.Must(t, err)
		for _, p := range list {
			want = append(want, p.RowKey().SK)
		}
		for size := 1; size <= 6; size++ {
			var got []string
			pages := 0
			for after, more := "", true; more; pages++ {
				page, next, err := Page(t.Context(), st, s, after, size)
				testkit.Must(t, err)
				if len(page) > size {
					t.Fatalf("%d keys on a page of %d", len(page), size)
				}
				for _, p := range page {
					got = append(got, p.RowKey().SK)
				}
				after, more = next, next != ""
			}
			if !slices.Equal(got, want) || pages > max(1, (len(want)+size-1)/size) {
				t.Errorf("%+v in pages of %d: %v in %d pages, not %v", s, size, got, pages, want)
			}
		}
	}
	all, _ := List(t.Context(), st, Select{})
	if len(all) != 5 || string(all[4].Key) != "k1" || all[4].Group != "b" {
		t.Errorf("%+v", all)
	}
}
