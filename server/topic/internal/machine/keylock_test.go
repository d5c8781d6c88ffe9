package machine

import "testing"

func expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, should be %v", what, got, want)
	}
}

// Messages of a key proceed one after the other, in order; others do not wait.
func TestInOrder(t *testing.T) {
	l := newKeyTable()
	expect(t, "the first", l.Blocked("k", 1), false)
	l.Hold("k", 1)
	for _, p := range []int64{7, 3, 5} { // in whatever order they come
		expect(t, "a later one", l.Blocked("k", p), true)
		l.Wait("k", p)
	}
	expect(t, "the holder", l.Blocked("k", 1), false)
	expect(t, "another key", l.Blocked("m", 2), false)
	expect(t, "waiting", l.Waiting("k"), 3)
	_, first := l.Return(1, waits)
	expect(t, "an earlier one waits", first, false)
	expect(t, "it again", l.Blocked("k", 1), false)
	expect(t, "a later one, meanwhile", l.Blocked("k", 9), true)
	l.Hold("k", 1)
	for want := int64(3); want < 8; want += 2 {
		next, ok := l.Free(want-2, waits)
		expect(t, "next", next, want)
		expect(t, "there is one", ok, true)
		expect(t, "may go", l.Blocked("k", next), false)
		l.Hold("k", next)
	}
	_, ok := l.Free(7, waits)
	expect(t, "nobody is left", ok, false)
	expect(t, "keys", l.Len(), 0)
}

// When a message comes back that has earlier ones behind it, the first of these that is not done goes before it.
func TestEarlierOneWaits(t *testing.T) {
	l := newKeyTable()
	l.Hold("k", 5)
	for _, p := range []int64{2, 3, 4, 8} {
		l.Wait("k", p)
	}
	next, ok := l.Return(5, func(p int64) bool { return p == 2 })
	expect(t, "there is one", ok, true)
	expect(t, "next", next, int64(3))
	expect(t, "it may go", l.Blocked("k", 3), false)
	expect(t, "the one that came back", l.Blocked("k", 5), true)
	l.Hold("k", 3)
	l.Wait("k", 5)
	for _, want := range []int64{4, 5, 8} {
		next, _ = l.Free(next, waits)
		expect(t, "next", next, want)
		l.Hold("k", next)
	}
	l.Free(8, waits)
	expect(t, "keys", l.Len(), 0)
}

// Without a key nobody waits; what holds nothing frees nothing.
func TestWithoutKey(t *testing.T) {
	l := newKeyTable()
	l.Hold("", 1)
	expect(t, "another one without", l.Blocked("", 2), false)
	_, ok := l.Free(1, waits)
	expect(t, "freed", ok, false)
	l.Return(2, waits)
	expect(t, "keys", l.Len(), 0)
	expect(t, "waiting", l.Waiting("k"), 0)
}

// A reset leaves those holders that are to be kept.
func TestReset(t *testing.T) {
	l := newKeyTable()
	for i, key := range []string{"a", "b", "c"} {
		l.Hold(key, int64(i))
		l.Wait(key, int64(i)+10)
	}
	l.Return(2, waits) // c is between two
	l.Reset(func(p int64) bool { return p == 1 })
	expect(t, "a", l.Blocked("a", 20), false)
	expect(t, "b", l.Blocked("b", 20), true)
	expect(t, "c", l.Blocked("c", 20), false)
	expect(t, "waiting for b", l.Waiting("b"), 0)
	expect(t, "keys", l.Len(), 1)
}

// waits says of no message that it is done with.
func waits(int64) bool { return false }

// Those that are done with while they wait are passed over.
func TestDoneWhileWaiting(t *testing.T) {
	l := newKeyTable()
	l.Hold("k", 1)
	for p := int64(2); p <= 5; p++ {
		l.Wait("k", p)
	}
	next, ok := l.Free(1, func(p int64) bool { return p < 4 })
	expect(t, "next", next, int64(4))
	expect(t, "there is one", ok, true)
	l.Hold("k", 4)
	_, ok = l.Free(4, func(int64) bool { return true })
	expect(t, "nobody is left", ok, false)
	expect(t, "keys", l.Len(), 0)
}
