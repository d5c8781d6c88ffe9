package chat_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// positions is a store that notes the writes of members' rows, and may hold them up.
type positions struct {
	store.Store
	// spoil, if given, is a mistake: what becomes of a plan that raises a read position.
	spoil func(ctx context.Context, p store.Plan, run func(context.Context, store.Plan) error) error

	mu       sync.Mutex
	rows     int              // writes of a read position
	hold     chan struct{}    // if not nil, those wait for it
	here     func(rows int)   // if not nil, is called before that
	late     []func() error   // what a mistake put off
	reported map[string]int64 // the highest revision of each member that was reported
}

func raises(p store.Plan) bool {
	return slices.ContainsFunc(p.Writes, func(w store.Write) bool {
		return w.Op == store.OpUpdate && w.Key.Table == store.DeliveryState
	})
}

func (s *positions) Transact(ctx context.Context, p store.Plan) error {
	if !raises(p) || slices.ContainsFunc(p.Writes, func(w store.Write) bool { return w.Key.Table == store.Messages }) {
		return s.Store.Transact(ctx, p)
	}
	s.mu.Lock()
	s.rows++
	hold, here, n := s.hold, s.here, s.rows
	s.mu.Unlock()
	if here != nil {
		here(n)
	}
	if hold != nil {
		<-hold
	}
	if s.spoil != nil {
		return s.spoil(ctx, p, s.Store.Transact)
	}
	return s.Store.Transact(ctx, p)
}

// readers is a chat of three with twenty messages.
func readers(t *testing.T) (*fixture, *positions, *chat.Service, string) {
	t.Helper()
	st := &positions{Store: storetest.NewMemory(time.Now), reported: map[string]int64{}}
	w := newFixture(t, st.Store)
	svc := w.service("p", st, func(c *chat.Config) {
		c.Receipt = func(row table.UserChat, _ table.Head) {
			st.mu.Lock()
			defer st.mu.Unlock()
			st.reported[row.UserID] = max(st.reported[row.UserID], row.Revision)
		}
	})
	w.users(svc, "ann", "ben", "cat")
	id := w.group(svc, "ann", "ben", "cat")
	for range 20 {
		if _, err := svc.Send(t.Context(), chat.Send{Caller: "ann", ChatID: id, Content: "hello"}); err != nil {
			t.Fatal(err)
		}
	}
	return w, st, svc, id
}

// Positions that one member reports while another is written share one write, of the
// highest; those with a request id are recorded with it.
func TestPositionsThatWaitAreWrittenOnce(t *testing.T) {
	w, st, svc, id := readers(t)
	inside := make(chan struct{})
	st.hold, st.here = make(chan struct{}), func(n int) {
		if n == 1 {
			close(inside)
		}
	}
	var wg sync.WaitGroup
	mark := func(sequence int64, request string) {
		wg.Go(func() {
			out, err := svc.MarkRead(t.Context(),
				chat.MarkRead{Caller: "ben", ChatID: id, Sequence: sequence, RequestID: request})
			if err != nil || out.Row.ReadSequence < sequence {
				t.Errorf("position %d is answered with %d: %v", sequence, out.Row.ReadSequence, err)
			}
		})
	}
	mark(2, "")
	<-inside
	waiting := []int64{5, 12, 3, 7}
	for i, sequence := range waiting {
		mark(sequence, []string{"", "", "r1", "r2"}[i])
	}
	for chat.WaitingReads(svc, "ben", id) < len(waiting) {
		runtime.Gosched()
	}
	close(st.hold)
	wg.Wait()
	row := w.userChat("ben", id)
	if st.rows != 2 || row.ReadSequence != 12 || st.reported["ben"] != row.Revision {
		t.Errorf("%d writes to position %d, reported %d of revision %d; want 2 writes to 12, all reported", st.rows,
			row.ReadSequence, st.reported["ben"], row.Revision)
	}
	again := chat.MarkRead{Caller: "ben", ChatID: id, Sequence: 3, RequestID: "r1"}
	if out, err := svc.MarkRead(t.Context(), again); err != nil || !out.Replayed {
		t.Errorf("repeated: %+v %v, want the answer to the first", out, err)
	}
	again.Sequence = 4
	if _, err := svc.MarkRead(t.Context(), again); err == nil {
		t.Error("one id stands for two requests")
	}
}

// Two requests with one id that wait together are like two after each other: the first
// counts, the second is refused and changes nothing.
func TestOneIDForTwoWaitingPositions(t *testing.T) {
	w, st, svc, id := readers(t)
	inside := make(chan struct{})
	st.hold, st.here = make(chan struct{}), func(n int) {
		if n == 1 {
			close(inside)
		}
	}
	mark := func(sequence int64, request string) <-chan error {
		ended := make(chan error, 1)
		waiting := chat.WaitingReads(svc, "ben", id)
		go func() {
			_, err := svc.MarkRead(t.Context(), chat.MarkRead{Caller: "ben", ChatID: id, Sequence: sequence, RequestID: request})
			ended <- err
		}()
		for request != "" && chat.WaitingReads(svc, "ben", id) == waiting {
			runtime.Gosched()
		}
		return ended
	}
	alone := mark(2, "")
	<-inside
	first, second := mark(5, "r"), mark(9, "r")
	close(st.hold)
	if err := errors.Join(<-alone, <-first); err != nil {
		t.Error(err)
	}
	if err := <-second; !errors.Is(err, chat.ErrKeyReused) {
		t.Errorf("the second request with the id: %v, want ErrKeyReused", err)
	}
	if row := w.userChat("ben", id); row.ReadSequence != 5 {
		t.Errorf("position %d is stored, want 5", row.ReadSequence)
	}
}

// readRound reports random positions at once and returns what an answer promised that the
// store does not have.
func readRound(t *testing.T, seed uint64, spoil func(*positions)) error {
	t.Helper()
	w, st, svc, id := readers(t)
	if spoil != nil {
		spoil(st)
	}
	var mu sync.Mutex
	var wrong error
	var wg sync.WaitGroup
	for n := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, n))
		wg.Go(func() {
			user := []string{"ann", "ben", "cat"}[n%3]
			for i := range 6 {
				c := chat.MarkRead{Caller: user, ChatID: id, Sequence: rng.Int64N(20) + 1}
				if rng.IntN(3) == 0 {
					c.RequestID = fmt.Sprint("r", n, "-", i)
				}
				out, err := svc.MarkRead(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				stored := w.userChat(user, id)
				mu.Lock()
				if stored.ReadSequence < c.Sequence || stored.Revision < out.Row.Revision || out.Row.ReadSequence < c.Sequence {
					wrong = fmt.Errorf("%s: %d is answered with %d, and %d is stored", user, c.Sequence,
						out.Row.ReadSequence, stored.ReadSequence)
				}
				mu.Unlock()
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	for _, late := range st.late {
		_ = late() // whatever it says, the round is over
	}
	for _, user := range []string{"ann", "ben", "cat"} {
		if row := w.userChat(user, id); wrong == nil && st.reported[user] < row.Revision && row.Revision > 0 &&
			user != "ann" {
			wrong = fmt.Errorf("%s: revision %d was not reported, only %d", user, row.Revision, st.reported[user])
		}
	}
	return wrong
}

// What is answered is stored, whatever is reported beside it.
func TestAnsweredPositionsAreStored(t *testing.T) {
	for seed := range uint64(30) {
		if err := readRound(t, seed, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// The same rounds must notice positions that are answered and not stored.
func TestReadRoundsNoticeBugs(t *testing.T) {
	for name, spoil := range map[string]func(*positions){
		"the answer comes before the write": func(s *positions) {
			s.spoil = func(ctx context.Context, p store.Plan, run func(context.Context, store.Plan) error) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.late = append(s.late, func() error { return run(context.WithoutCancel(ctx), p) })
				return nil
			}
		},
		"the highest position is dropped": func(s *positions) {
			s.spoil = func(ctx context.Context, p store.Plan, run func(context.Context, store.Plan) error) error {
				writes := slices.Clone(p.Writes)
				for i := range writes {
					set := slices.Clone(writes[i].Update.Set)
					for j := range set {
						if set[j].Name == table.AttrReadSequence {
							set[j].Value = store.Int(set[j].Value.Int64() - 1)
						}
					}
					writes[i].Update.Set = set
				}
				return run(ctx, store.Plan{Writes: writes})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				if err := readRound(t, seed, spoil); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}
