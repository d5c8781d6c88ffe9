package dynamotest

import (
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/storetest"
)

// instead makes the stores of tests that run again; nil outside of Rerun.
//
//nolint:gochecknoglobals // tests that run again take it from nowhere else
var instead struct {
	sync.Mutex
	open func(t testing.TB, clock func() time.Time) store.Store
}

// Store makes the store of a test that needs no particular engine: the map engine, or
// one on DynamoDB Local when the test is run again.
func Store(t testing.TB, clock func() time.Time) store.Store {
	t.Helper()
	instead.Lock()
	open := instead.open
	instead.Unlock()
	if open == nil {
		return storetest.NewMemory(clock)
	}
	return open(t, clock)
}

// Rerun runs tests of a package again, unchanged, with a store on DynamoDB Local
// wherever they take one from [Store]. They must not run in parallel with others.
func Rerun(t *testing.T, tests ...func(*testing.T)) {
	rerun(t, func(t testing.TB, clock func() time.Time) store.Store {
		return Fresh(t, func(o *dynamo.Options) { o.Clock = clock })
	}, tests)
}

// RerunUnderFaults is Rerun with requests that meet random faults. It fails if none did.
func RerunUnderFaults(t *testing.T, seed uint64, tests ...func(*testing.T)) {
	met := 0
	rerun(t, func(t testing.TB, clock func() time.Time) store.Store {
		f := RandomChaos(seed)
		t.Cleanup(func() { met += f.Count() })
		return Fresh(t, f.Inject, func(o *dynamo.Options) { o.Clock = clock })
	}, tests)
	if met == 0 && !t.Failed() {
		t.Error("no request met a fault")
	}
}

// RerunOutside is Rerun for tests that run in bubbles of testing/synctest; their requests
// meet the faults, if there are any.
func RerunOutside(t *testing.T, f *Faults, tests ...func(*testing.T)) {
	Endpoint(t)
	var change []func(*dynamo.Options)
	if f != nil {
		change = append(change, f.Inject)
	}
	for _, test := range tests {
		t.Run(nameOf(test), func(t *testing.T) {
			ask, stores := make(chan struct{}), make(chan *Outside)
			go func() { // outside of all bubbles
				defer close(stores)
				for range ask {
					stores <- NewOutside(t, change...)
				}
			}()
			replace(t, func(inside testing.TB, _ func() time.Time) store.Store {
				ask <- struct{}{}
				o, ok := <-stores
				if !ok {
					inside.FailNow() // why was said
				}
				return o
			})
			defer func() {
				close(ask)
				<-stores
			}()
			test(t)
		})
	}
	if f != nil && f.Count() == 0 && !t.Failed() {
		t.Error("no request met a fault")
	}
}

func rerun(t *testing.T, open func(testing.TB, func() time.Time) store.Store, tests []func(*testing.T)) {
	Endpoint(t)
	for _, test := range tests {
		t.Run(nameOf(test), func(t *testing.T) {
			replace(t, open)
			test(t)
		})
	}
}

// replace makes Store use open until the test has ended, which fails if it took no store.
func replace(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	var taken atomic.Int64
	set := func(f func(testing.TB, func() time.Time) store.Store) {
		instead.Lock()
		defer instead.Unlock()
		instead.open = f
	}
	set(func(t testing.TB, clock func() time.Time) store.Store {
		taken.Add(1)
		return open(t, clock)
	})
	t.Cleanup(func() {
		set(nil)
		if taken.Load() == 0 && !t.Failed() && !t.Skipped() {
			t.Error("the test takes no store from dynamotest.Store")
		}
	})
}

func nameOf(test func(*testing.T)) string {
	name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
	return strings.TrimPrefix(name[strings.LastIndexByte(name, '.')+1:], "Test")
}

// Rounds is how often a test of chance tries: many times, or few when it is run again.
func Rounds(many, few int) int {
	instead.Lock()
	defer instead.Unlock()
	if instead.open != nil {
		return few
	}
	return many
}
