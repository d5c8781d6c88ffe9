package admit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A user has 128 requests under way for one chat, and 512 in all; nothing remains of
// those that ended.
func TestUnderWay(t *testing.T) {
	d := New(Config{Clock: time.Now})
	enter := func(user, chat string, n int) (let int) {
		for range n {
			err := d.Begin(user, chat)
			if err == nil {
				let++
			} else if !errors.Is(err, ErrBusy) {
				t.Fatal(err)
			}
		}
		return let
	}
	if n := enter("a", "c1", 200); n != 128 {
		t.Errorf("%d for one chat", n)
	}
	if n := enter("a", "c2", 200) + enter("a", "", 500); n != 512-128 {
		t.Errorf("%d besides", n)
	}
	if n := enter("b", "c1", 10); n != 10 {
		t.Errorf("%d of another user", n)
	}
	d.End("a", "c1")
	if n := enter("a", "c1", 2); n != 1 {
		t.Errorf("%d after one left", n)
	}
	for range 128 {
		d.End("a", "c1")
		d.End("a", "c2")
		d.End("a", "")
		d.End("a", "")
	}
	for range 10 {
		d.End("b", "c1")
	}
	for i := range d.shards {
		if n := len(d.shards[i].underWay); n != 0 {
			t.Errorf("%d counts are left", n)
		}
	}
}

// Four requests of a user are looked up at a time, whatever others do; who gives up does
// not take a place.
func TestLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Clock: time.Now})
		var wg sync.WaitGroup
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 40 {
			wg.Go(func() {
				user := fmt.Sprint("u", i%2)
				if err := d.AcquireLookup(t.Context(), user); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				d.ReleaseLookup(user)
			})
		}
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				if err := d.AcquireLookup(ctx, "u0"); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("20 of each took %v", took)
		}
		for i := range d.shards {
			if n := len(d.shards[i].lookups); n != 0 {
				t.Errorf("%d users are left", n)
			}
		}
	})
}

func TestWhoIsProven(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := New(Config{Clock: func() time.Time { return now }})
	is := func(what string, want bool) {
		t.Helper()
		if d.Cached("u", "c") != want {
			t.Errorf("%s: %v", what, !want)
		}
	}
	is("unknown", false)
	d.Cache("u", "c")
	is("proven", true)
	if d.Cached("u", "d") || d.Cached("v", "c") {
		t.Error("another pair is proven")
	}
	d.Evict("u", "c")
	is("forgotten", false)
	d.Cache("u", "c")
	d.Suspect("u", "c")
	d.Cache("u", "c")
	is("suspect", false)
	d.Evict("u", "c") // does not clear it
	now = now.Add(9 * time.Second)
	d.Cache("u", "c")
	is("suspect for 9 s", false)
	now = now.Add(2 * time.Second)
	is("nobody was looked up since", false)
	d.Cache("u", "c")
	is("proven again", true)
}

// Memory is bounded, and who is used stays.
func TestMemory(t *testing.T) {
	d := New(Config{Clock: time.Now, Members: 64 * shards})
	d.Cache("u", "often")
	for i := range 100_000 {
		d.Cache(fmt.Sprint("u", i%1000), fmt.Sprint("c", i))
		if !d.Cached("u", "often") {
			t.Fatalf("forgotten after %d", i)
		}
	}
	n := 0
	for i := range d.shards {
		n += len(d.shards[i].recent) + len(d.shards[i].older)
	}
	if n > 2*64*shards || n < 64*shards {
		t.Errorf("%d pairs are remembered", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	d := New(Config{Clock: time.Now, Members: 100})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 500 {
				user, chat := fmt.Sprint("u", n%7), fmt.Sprint("c", (n+i)%50)
				if d.Begin(user, chat) == nil {
					if !d.Cached(user, chat) && d.AcquireLookup(context.Background(), user) == nil {
						d.Cache(user, chat)
						d.ReleaseLookup(user)
					}
					d.Suspect(user, fmt.Sprint("c", n))
					d.Evict(user, chat)
					d.End(user, chat)
				}
			}
		})
	}
	wg.Wait()
	for i := range d.shards {
		if len(d.shards[i].underWay) != 0 || len(d.shards[i].lookups) != 0 {
			t.Error("something is left")
		}
	}
}
