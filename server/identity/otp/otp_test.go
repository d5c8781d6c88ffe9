package otp_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
)

// S-09: a code has six digits and is good once.
func TestSec_S_09_Replay(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	if len(code) != 6 || strings.Trim(code, "0123456789") != "" {
		t.Fatalf("a code is %q", code)
	}
	testkit.Must(t, f.verify(id, code))
	f.refused("again", f.verify(id, code))
	testkit.Equal(t, "events", f.events, map[securitylog.Kind]int{securitylog.CodeRequested: 1, securitylog.CodeWrong: 1})
}

// S-09: after five wrong attempts the right one is refused, too.
func TestSec_S_09_SixthAttempt(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	for range 4 {
		f.refused("wrong", f.verify(id, other(code)))
	}
	f.advance(time.Minute)
	id, code = f.request() // a new code, five attempts
	for n := range 5 {
		f.refused(fmt.Sprint("wrong, ", n), f.verify(id, other(code)))
	}
	f.refused("sixth", f.verify(id, code))
	f.advance(time.Minute)
	id, code = f.request()
	for range 4 {
		f.refused("wrong", f.verify(id, other(code)))
	}
	testkit.Must(t, f.verify(id, code)) // the fifth
}

// S-09: a code is good for five minutes, to the second.
func TestSec_S_09_Expiry(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	f.advance(5*time.Minute - time.Second)
	testkit.Must(t, f.verify(id, code))
	id, code = f.request()
	f.advance(5 * time.Minute)
	f.refused("too late", f.verify(id, code))
}

// S-09: a new code voids the last, and is good for its own request only.
func TestSec_S_09_NewCodeVoidsTheLast(t *testing.T) {
	f := newFixture(t)
	first, old := f.request()
	f.advance(time.Minute)
	second, code := f.request()
	f.refused("old code, old request", f.verify(first, old))
	f.refused("new code, old request", f.verify(first, code))
	f.refused("no request", f.verify("", code))
	if old != code {
		f.refused("old code, new request", f.verify(second, old))
	}
	testkit.Must(t, f.verify(second, code))
}

// Who does not have the id of the request cannot use up the owner's attempts, not even
// from the owner's network.
func TestStrangersMakeNoAttempts(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	beside := "A" + id[1:]
	if id[0] == 'A' {
		beside = "B" + id[1:]
	}
	for range 30 {
		f.refused("a stranger", f.verify("made up", other(code)))
		f.refused("a neighbour", f.verify(beside, other(code)))
	}
	testkit.Must(t, f.verify(id, code))
}

// S-09: of callers with one code at the same time one is served; and many who guess at the same
// time have five attempts together.
func TestSec_S_09_ParallelVerify(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	var served, wrong atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch err := f.Verify(t.Context(), ann(t), id, code, "", nothing); {
			case err == nil:
				served.Add(1)
			case !errors.Is(err, otp.ErrCode) && !errors.Is(err, store.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "served", served.Load(), 1)
	f.advance(time.Minute)
	id, code = f.request()
	for range 16 {
		wg.Go(func() {
			for { // until it is known that this was no attempt, or was one
				err := f.Verify(t.Context(), ann(t), id, other(code), "", nothing)
				if errors.Is(err, store.ErrConflict) {
					continue
				}
				if !errors.Is(err, otp.ErrCode) {
					t.Error(err)
				}
				wrong.Add(1)
				return
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "answers", wrong.Load(), 16)
	testkit.Equal(t, "attempts", f.codeRow().Item.Get("attempts").Int64(), 5)
}

// S-09: an identifier has 25 attempts in any 24 hours, whatever codes it asks for.
func TestSec_S_09_GuessesOfADay(t *testing.T) {
	f := newFixture(t)
	start := f.clock()
	networks := 0
	ask := func() error {
		networks++
		id, code, err := f.askFrom(fmt.Sprintf("198.51.100.%d/32", networks))
		for range 5 {
			if err == nil {
				f.refused("wrong", f.verify(id, other(code)))
			}
		}
		return err
	}
	for range 5 {
		testkit.Must(t, ask())
		f.advance(time.Hour)
	}
	f.often("a code for the 26th", ask(), start.Add(24*time.Hour).Sub(f.clock()))
	f.advance(start.Add(24 * time.Hour).Sub(f.clock())) // the first five are a day ago
	testkit.Must(t, ask())
	f.advance(10 * time.Minute)
	f.often("a code for the 31st", ask(), 50*time.Minute)
}

// S-10: an identifier can have a code every 60 seconds, and ten in any 24 hours.
func TestSec_S_10_CodesOfADay(t *testing.T) {
	f := newFixture(t)
	start := f.clock()
	ask := func() error {
		_, err := f.Request(t.Context(), ann(t), "")
		return err
	}
	testkit.Must(t, ask())
	f.often("at once", ask(), time.Minute)
	f.advance(59 * time.Second)
	f.often("too soon", ask(), time.Second)
	for range 9 {
		f.advance(time.Minute)
		testkit.Must(t, ask())
	}
	f.advance(time.Minute)
	f.often("eleventh", ask(), start.Add(24*time.Hour).Sub(f.clock()))
	f.advance(start.Add(24 * time.Hour).Sub(f.clock()))
	testkit.Must(t, ask())
	testkit.Equal(t, "codes", len(f.sent), 11)
	testkit.Equal(t, "refused", f.events[securitylog.CodeRefused], 3)
}

// S-10: of many who ask for the same identifier at the same time one is served.
func TestSec_S_10_ParallelRequests(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var often *otp.TooOften
			if _, err := f.Request(t.Context(), ann(t), ""); err != nil && !errors.As(err, &often) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "codes", len(f.sent), 1)
}

// S-10: limits that cannot be asked refuse, and so do those that say so.
func TestSec_S_10_LimitsFailClosed(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	f.advance(time.Minute)
	f.limits = limits{err: errors.New("the counters are away")}
	if _, err := f.Request(t.Context(), ann(t), ""); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without limits: %v", err)
	}
	if err := f.verify(id, code); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without limits: %v", err)
	}
	f.limits = limits{retry: time.Hour}
	_, err := f.Request(t.Context(), ann(t), "")
	f.often("beyond a limit", err, time.Hour)
	f.often("beyond a limit", f.verify(id, code), time.Hour)
	f.limits = limits{}
	testkit.Equal(t, "codes", len(f.sent), 1)
	testkit.Must(t, f.verify(id, code))
}

// traced lists the calls of a store.
func traced(calls *[]string) func(store.Store) store.Store {
	return func(s store.Store) store.Store {
		return faulty.New(s, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
			line := string(c.Method)
			for _, w := range c.Writes {
				line += fmt.Sprintf(" %d %s %d", w.Op, w.Key.Table, w.Item.Size())
			}
			*calls = append(*calls, line)
			return faulty.Fault{}
		}})
	}
}

// S-10: an identifier that may not sign in is answered like any other, by the same calls of the
// store with rows of the same size, and no code leads anywhere.
func TestSec_S_10_UnknownIdentifierIsLikeAKnownOne(t *testing.T) {
	var seen [2][]string
	for i, nobody := range []bool{false, true} {
		f := newFixture(t, traced(&seen[i]))
		f.nobody = nobody
		for range 2 {
			r := testkit.Value(f.Request(t.Context(), ann(t), ""))(t)
			if r.Expires != f.now.Add(5*time.Minute) || r.ResendAt != f.now.Add(time.Minute) || len(r.ID) != 42 {
				t.Errorf("%+v", r)
			}
			for range 6 {
				f.refused("wrong", f.verify(r.ID, "000000"))
			}
			f.often("soon", func() error { _, err := f.Request(t.Context(), ann(t), ""); return err }(), time.Minute)
			f.advance(time.Minute)
		}
		if nobody != (len(f.sent) == 0) {
			t.Errorf("%d codes were sent", len(f.sent))
		}
	}
	if !slices.Equal(seen[0], seen[1]) || len(seen[0]) < 20 {
		t.Errorf("known:\n%s\nunknown:\n%s", strings.Join(seen[0], "\n"), strings.Join(seen[1], "\n"))
	}
	// One of the million codes is right, and none where nobody was sent one.
	for _, nobody := range []bool{false, true} {
		f := newFixture(t)
		f.nobody = nobody
		r := testkit.Value(f.Request(t.Context(), ann(t), ""))(t)
		if right := f.codesThatFit(r.ID); right != 1 && !nobody || right != 0 && nobody {
			t.Errorf("nobody %v: %d codes are right", nobody, right)
		}
	}
}

// codesThatFit is how many codes the hash of the one row is of, by the way that hashes are made.
func (f *fixture) codesThatFit(request string) (n int) {
	f.t.Helper()
	want := f.codeRow().Item.Get("hash").Blob()
	if len(want) != sha256.Size {
		f.t.Fatalf("a hash of %d bytes", len(want))
	}
	mac := hmac.New(sha256.New, []byte(strings.Repeat("p", otp.PepperSize)))
	sum := make([]byte, 0, sha256.Size)
	for code := range 1_000_000 {
		mac.Reset()
		fmt.Fprintf(mac, "code\x00%s\x00email:ann@example.com\x00%06d", request, code)
		if sum = mac.Sum(sum[:0]); bytes.Equal(sum, want) {
			n++
		}
	}
	return n
}

// S-09: a caller who is so slow that another has used the code when its plan comes is refused, and
// one who guessed meanwhile is counted; a code that was asked for meanwhile stays the one.
func TestSec_S_09_SlowCaller(t *testing.T) {
	var meanwhile func()
	f := newFixture(t)
	slow := f.service(faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if next := meanwhile; c.Method == faulty.Transact && next != nil {
			meanwhile = nil
			next()
		}
		return faulty.Fault{}
	}}), 'p')
	id, code := f.request()
	meanwhile = func() { testkit.Must(t, f.verify(id, code)) }
	f.refused("used meanwhile", slow.Verify(t.Context(), ann(t), id, code, "", nothing))
	f.advance(time.Minute)
	id, code = f.request()
	meanwhile = func() {
		for range 4 {
			f.refused("wrong", f.verify(id, other(code)))
		}
	}
	f.refused("the fifth", slow.Verify(t.Context(), ann(t), id, other(code), "", nothing))
	f.refused("the sixth", f.verify(id, code))
	f.advance(time.Minute)
	meanwhile = func() { id, code = f.request() }
	_, err := slow.Request(t.Context(), ann(t), "192.0.2.0/24")
	f.often("asked for meanwhile", err, time.Minute)
	testkit.Must(t, f.verify(id, code))
}

// S-09: without the key of the hashes nobody can take or make a code.
func TestSec_S_09_Pepper(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	f.refused("another key", f.service(f.store, 'q').Verify(t.Context(), ann(t), id, code, "", nothing))
	testkit.Must(t, f.verify(id, code))
	_ = testkit.Value(f.service(f.store, 'q').Request(t.Context(), ann(t), "192.0.2.0/24"))(t)
	keys := map[string]bool{}
	for _, row := range f.rows() {
		if keys[row.Key.PK] = true; len(row.Key.PK) != 64 {
			t.Error(row.Key)
		}
	}
	testkit.Equal(t, "keys", len(keys), 4)
}

// S-09: what the store has of a code is of no use without the key: neither the code nor its
// plain hashes, and not whose it is.
func TestSec_S_09_StoredCodeIsHashedWithAKey(t *testing.T) {
	f := newFixture(t)
	id, code := f.request()
	rows := fmt.Sprintf("%q %+v", f.rows(), f.rows())
	for _, plain := range []string{code, code + id, id + code, "ann@example.com" + code, "email:ann@example.com"} {
		sum := sha256.Sum256([]byte(plain))
		for _, text := range []string{hex.EncodeToString(sum[:]), fmt.Sprintf("%q", sum[:])} {
			if strings.Contains(rows, text) {
				t.Errorf("the hash of %q is in %s", plain, rows)
			}
		}
	}
	if strings.Contains(rows, "example.com") || strings.Contains(rows, `"`+code) {
		t.Error(rows)
	}
}

// Codes are spread over all that there are, leading zeros included.
func TestCodesAreSpread(t *testing.T) {
	f := newFixture(t)
	var digits [6][10]int
	distinct := map[string]bool{}
	const n = 2000
	for i := range n {
		id := testkit.Value(identifier.Parse(fmt.Sprint("ann", i, "@example.com")))(t)
		_ = testkit.Value(f.Request(t.Context(), id, ""))(t)
		code := f.sent[i].Code
		distinct[code] = true
		for at, d := range code {
			digits[at][d-'0']++
		}
	}
	for at := range digits {
		for d, count := range digits[at] { // 200 ± 13.4, so that 7 sigma are 94
			if count < 100 || count > 300 {
				t.Errorf("digit %d stands %d times in place %d", d, count, at)
			}
		}
	}
	if len(distinct) < n-30 { // two of 2,000 are equal twice on average
		t.Errorf("%d different codes", len(distinct))
	}
}

// What cannot be sent is refused before a code is made.
func TestNoWay(t *testing.T) {
	f := newFixture(t)
	phone := testkit.Value(identifier.Parse("+49 151 2345678"))(t)
	if _, err := f.Request(t.Context(), phone, ""); !errors.Is(err, otp.ErrKind) {
		t.Errorf("by phone: %v", err)
	}
	f.full = true
	if _, err := f.Request(t.Context(), ann(t), ""); !errors.Is(err, otp.ErrBusy) {
		t.Errorf("a full queue: %v", err)
	}
	if rows := f.rows(); len(rows) != 0 {
		t.Error(rows)
	}
	silent := testkit.Value(otp.New(otp.Config{Store: f.store, Clock: f.clock, Pepper: make([]byte, otp.PepperSize),
		Welcome: func(context.Context, identifier.Identifier) (bool, error) { return true, nil },
		Record:  func(context.Context, securitylog.Event) {}}))(t)
	if _, err := silent.Request(t.Context(), ann(t), ""); !errors.Is(err, otp.ErrOff) {
		t.Errorf("no way at all: %v", err)
	}
	if _, err := otp.New(otp.Config{Store: f.store, Clock: f.clock, Pepper: []byte("short")}); err == nil {
		t.Error("a short pepper is taken")
	}
}

// The plan of a code has the other writes or is not committed; when these fail on a condition
// of their own, they are made again, and what they refuse uses the code up.
func TestPlanOfACode(t *testing.T) {
	f := newFixture(t)
	key := store.Key{Table: store.Chats, PK: "taken"}
	put := func(k store.Key) store.Write {
		return store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(), Cond: store.Absent(), Name: "own"}
	}
	testkit.Must(t, f.store.Transact(t.Context(), store.Plan{Writes: []store.Write{put(key)}}))
	id, code := f.request()
	var seen []*store.ConditionError
	more := func(_ context.Context, failed *store.ConditionError) ([]store.Write, error) {
		seen = append(seen, failed)
		if failed != nil {
			key.PK = "free"
		}
		return []store.Write{put(key)}, nil
	}
	testkit.Must(t, f.Verify(t.Context(), ann(t), id, code, "", more))
	if len(seen) != 2 || seen[0] != nil || seen[1] == nil {
		t.Errorf("%v", seen)
	}
	if it := testkit.Value(f.store.Get(t.Context(), key, store.Strong))(t); it == nil {
		t.Error("the other write is missing")
	}
	f.advance(time.Minute)
	id, code = f.request()
	errRefused := errors.New("refused")
	err := f.Verify(t.Context(), ann(t), id, code, "",
		func(context.Context, *store.ConditionError) ([]store.Write, error) { return nil, errRefused })
	if !errors.Is(err, errRefused) {
		t.Errorf("refused by the others: %v", err)
	}
	f.refused("after that", f.verify(id, code))
}
