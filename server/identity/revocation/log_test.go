package revocation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table/people"
)

// A process whose clock was wrong for a while knows afterwards what was revoked meanwhile, also
// what it took for expired.
func TestClockThatWasAhead(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		other := newProcess(t, key, st, true, 0)
		var off atomic.Int64
		p := newProcess(t, key, st, true, 0)
		clock := func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
		p.Service.cfg.Clock = clock
		p.gate = newGate(t, key, clock, p.Informed)
		defer p.run(t)()
		synctest.Wait()
		off.Store(int64(time.Hour))
		time.Sleep(10 * time.Second)
		for session, life := range map[string]time.Duration{"ses_1": 12 * time.Hour, "ses_2": 30 * time.Minute} {
			if err := other.RevokeSession(t.Context(), session, time.Now().Add(life)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		for i := range 200 { // makes room: what is over is forgotten
			p.gate.Revoke(fmt.Sprint("ses_x", i), clock().Add(time.Hour))
		}
		off.Store(0)
		if p.Informed(clock()) {
			t.Error("a reading that is in the future counts")
		}
		time.Sleep(5 * time.Second)
		for _, session := range []string{"ses_1", "ses_2"} {
			if !p.gate.Refuses(auth.Principal{SessionID: session, IssuedAt: time.Now().Add(-time.Hour)}) {
				t.Errorf("%s, which was ended, is good here", session)
			}
		}
	})
}

// A writer that stalls between making a row and storing it, as in a pause of its machine,
// is seen everywhere once it resumes, whatever others wrote meanwhile.
func TestWriterThatStoodStill(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory(time.Now)
		var once sync.Once
		st := &paused{Store: memory, pause: func() { once.Do(func() { time.Sleep(3 * time.Minute) }) }}
		p := newProcess(t, key, memory, true, 0)
		defer p.run(t)()
		synctest.Wait()
		writer, other := newProcess(t, key, st, true, 0), newProcess(t, key, memory, true, 0)
		done := make(chan error)
		go func() { done <- writer.RevokeSession(t.Context(), "ses_1", time.Now().Add(12*time.Hour)) }()
		time.Sleep(time.Minute)
		if err := other.RevokeSession(t.Context(), "ses_2", time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for _, session := range []string{"ses_1", "ses_2"} {
			if !p.gate.Refuses(auth.Principal{SessionID: session}) {
				t.Errorf("%s: a revocation that was confirmed is unknown elsewhere", session)
			}
		}
	})
}

// A row that cannot be read shuts nobody out but whom it names, and hides no other row.
func TestRowThatCannotBeRead(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		far := time.Now().Add(time.Hour)
		plan := store.Plan{}
		for n, r := range []people.Revocation{
			{Kind: 9}, {Kind: 9, Subject: "ann", Until: far.UnixMilli()}, {Kind: 0, Subject: "bob"},
			{Kind: int64(auth.RevokedUser), Subject: "cid", Until: far.UnixMilli()},
		} {
			r.Log, r.Number, r.ExpiresAt = "x", int64(n+1), far.Unix()
			plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: r.Key(), Item: r.Item()})
		}
		for _, l := range []people.RevocationLog{{ID: "w"}, {ID: "x", Last: 4}} { // how far w goes it does not say
			l.ExpiresAt = far.Unix()
			plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: l.Key(), Item: l.Item()})
		}
		late := people.Revocation{Log: "w", Number: 1, Kind: int64(auth.RevokedUser), Subject: "dan", Until: far.UnixMilli(),
			ExpiresAt: far.Unix()}
		plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: late.Key(), Item: late.Item()})
		if err := st.Transact(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		p := newProcess(t, key, st, true, 0)
		defer p.run(t)()
		time.Sleep(10 * time.Second)
		if !p.Informed(time.Now()) {
			t.Error("nobody is admitted")
		}
		if n := p.Unreadable(); n != 3 {
			t.Errorf("%d rows could not be read", n)
		}
		for user, want := range map[string]bool{"ann": true, "bob": true, "cid": true, "dan": true, "eve": false} {
			if p.gate.Refuses(auth.Principal{UserID: user, SessionID: "ses_" + user}) != want {
				t.Errorf("%s is refused: %v", user, !want)
			}
		}
		if !p.gate.Refuses(auth.Principal{UserID: "fay", SessionID: "ann"}) {
			t.Error("a row that may mean a session is taken for a user's alone")
		}
	})
}

// Each process reads a row once: many revocations, as of one client that signs in and out in a
// loop, do not keep it from knowing what was revoked.
func TestRowsAreReadOnce(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory(time.Now)
		writer := newProcess(t, key, memory, true, 0)
		st := &counted{Store: memory}
		p := newProcess(t, key, st, true, 0)
		defer p.run(t)()
		synctest.Wait()
		const rows = 3000
		for n := range rows { // 100 in a second, for half a minute
			if err := writer.RevokeSession(t.Context(), fmt.Sprint("ses_", n), time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		if n := st.rows.Load(); n > rows+100 { // and the log's own row, each second
			t.Errorf("%d rows were read, of %d", n, rows)
		}
		if p.Applied() != rows {
			t.Errorf("%d were applied", p.Applied())
		}
	})
}

// Whatever answers of the store are lost, and however late a plan is carried out, what was
// confirmed is known everywhere; and what comes at a time shares its plans.
func TestLostAnswers(t *testing.T) {
	key := newKey(t)
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			memory := storetest.NewMemory(time.Now)
			random, plans := rand.New(rand.NewPCG(seed, 1)), 0
			var mu sync.Mutex
			st := faulty.New(memory, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
				mu.Lock()
				defer mu.Unlock()
				if c.Method != faulty.Transact {
					return faulty.Fault{}
				}
				plans++
				switch random.IntN(4) {
				case 0:
					return faulty.Fault{When: faulty.After, Err: store.ErrAmbiguous}
				case 1:
					return faulty.Fault{When: faulty.Before, Err: store.ErrAmbiguous}
				case 2:
					late := store.Plan{Writes: c.Writes}
					go func() { // it is carried out when others have been
						time.Sleep(time.Second)
						_ = memory.Transact(context.Background(), late)
					}()
					return faulty.Fault{When: faulty.Before, Err: store.ErrAmbiguous}
				}
				return faulty.Fault{}
			}})
			writer, p := newProcess(t, key, st, true, 0), newProcess(t, key, memory, true, 0)
			defer p.run(t)()
			var confirmed sync.Map
			var wg sync.WaitGroup
			for n := range 200 {
				if n%50 == 0 {
					time.Sleep(500 * time.Millisecond)
				}
				wg.Go(func() {
					if writer.RevokeSession(t.Context(), fmt.Sprint("ses_", n), time.Now().Add(time.Hour)) == nil {
						confirmed.Store(fmt.Sprint("ses_", n), true)
					}
				})
			}
			wg.Wait()
			time.Sleep(5 * time.Second)
			count := 0
			confirmed.Range(func(session, _ any) bool {
				count++
				if !p.gate.Refuses(auth.Principal{SessionID: session.(string)}) {
					t.Errorf("seed %d: %s is unknown", seed, session)
				}
				return true
			})
			if mu.Lock(); count == 0 || plans > 100 {
				t.Errorf("seed %d: %d of 200 were confirmed, by %d plans", seed, count, plans)
			}
			mu.Unlock()
		})
	}
}

// Nothing follows in a log of which it is unknown how far it goes: what comes next would be
// taken for what was lost.
func TestUnknownOutcome(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory(time.Now)
		var deaf atomic.Bool
		st := faulty.New(memory, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
			if deaf.Load() && c.Method == faulty.Transact {
				return faulty.Fault{When: faulty.After, Err: store.ErrAmbiguous}
			}
			return faulty.Fault{}
		}})
		writer, p := newProcess(t, key, st, true, 0), newProcess(t, key, memory, true, 0)
		defer p.run(t)()
		for i := range 4 {
			deaf.Store(i%2 == 0)
			session := fmt.Sprint("ses_", i)
			err := writer.RevokeSession(t.Context(), session, time.Now().Add(time.Hour))
			if (err != nil) != deaf.Load() || !writer.gate.Refuses(auth.Principal{SessionID: session}) {
				t.Errorf("%s: %v", session, err)
			}
			time.Sleep(5 * time.Second)
			if !p.gate.Refuses(auth.Principal{SessionID: session}) {
				t.Errorf("%s is unknown", session)
			}
		}
	})
}

// Where a log has expired, another one follows.
func TestLogThatHasExpired(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		writer, p := newProcess(t, key, st, true, 0), newProcess(t, key, st, true, 0)
		defer p.run(t)()
		for i := range 3 {
			session := fmt.Sprint("ses_", i)
			if err := writer.RevokeSession(t.Context(), session, time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if !p.gate.Refuses(auth.Principal{SessionID: session}) {
				t.Errorf("%s is unknown", session)
			}
			time.Sleep(time.Hour)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.reached) != 0 {
			t.Errorf("logs that are gone are remembered: %v", p.reached)
		}
	})
}

// What waits to be written is bounded.
func TestWaitingIsBounded(t *testing.T) {
	l := &log{writing: true, waiting: make([]entry, maxWaiting)}
	if err := l.add(t.Context(), people.Revocation{}); err == nil || len(l.waiting) != maxWaiting {
		t.Error(err, len(l.waiting))
	}
}

// paused is a store whose plans wait.
type paused struct {
	store.Store
	pause func()
}

// Transact implements store.Store.
func (s *paused) Transact(ctx context.Context, p store.Plan) error {
	s.pause()
	return s.Store.Transact(context.WithoutCancel(ctx), p)
}

// counted is a store that counts the rows of queries.
type counted struct {
	store.Store
	rows atomic.Int64
}

// Query implements store.Store.
func (s *counted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	page, err := s.Store.Query(ctx, q)
	s.rows.Add(int64(len(page.Rows)))
	return page, err
}
