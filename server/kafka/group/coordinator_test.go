package group

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// memory is a store whose writes can fail or wait.
type memory struct {
	mu   sync.Mutex
	rows map[string][]byte
	err  error
	gate chan struct{} // each write waits for one, if it is not nil
}

func (m *memory) Load(_ context.Context, each func(Row) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, v := range m.rows {
		if err := each(Row{[]byte(k), v}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Write(ctx context.Context, rows []Row) error {
	if m.gate != nil {
		select {
		case <-m.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	for _, r := range rows {
		if r.Value == nil {
			delete(m.rows, string(r.Key))
		} else {
			m.rows[string(r.Key)] = r.Value
		}
	}
	return nil
}

func started(t *testing.T, store *memory) *Coordinator {
	t.Helper()
	if store.rows == nil {
		store.rows = map[string][]byte{}
	}
	return testkit.Value(New(t.Context(), Config{Store: store, Topics: tested}))(t)
}

func handle[R kmsg.Response](t *testing.T, c *Coordinator, req kmsg.Request) R {
	t.Helper()
	res := testkit.Value(c.Handle(t.Context(), Client{Credential: "reader", ID: "app"}, req))(t)
	return res.(R)
}

// Two members share a group through the coordinator until one of them stops its heartbeats; what they committed is
// there after a restart, and they are not.
func TestCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		c := started(t, store)
		ids := make(chan string, 2)
		for range 2 {
			go func() {
				id := handle[*kmsg.JoinGroupResponse](t, c, joinRequest(9, "g", "", "")).MemberID
				res := handle[*kmsg.JoinGroupResponse](t, c, joinRequest(9, "g", id, ""))
				var plan []string
				for _, m := range res.Members {
					plan = append(plan, m.MemberID, "for "+m.MemberID)
				}
				got := handle[*kmsg.SyncGroupResponse](t, c, syncRequest(5, "g", id, res.Generation, plan...))
				if string(got.MemberAssignment) != "for "+id {
					t.Errorf("the assignment of %s is %q", id, got.MemberAssignment)
				}
				ids <- id
			}()
		}
		one, two := <-ids, <-ids
		commit := handle[*kmsg.OffsetCommitResponse](t, c, commitRequest(9, "g", one, 1, 0, 7))
		testkit.Equal(t, "commit", commit.Topics[0].Partitions[0].ErrorCode, 0)
		time.Sleep(8 * time.Second)
		testkit.Equal(t, "heartbeat", handle[*kmsg.HeartbeatResponse](t, c, heartbeatRequest("g", one, 1)).ErrorCode, 0)
		time.Sleep(3 * time.Second)
		testkit.Equal(t, "heartbeat", handle[*kmsg.HeartbeatResponse](t, c, heartbeatRequest("g", one, 1)).ErrorCode,
			kerr.RebalanceInProgress.Code)
		testkit.Equal(t, "heartbeat", handle[*kmsg.HeartbeatResponse](t, c, heartbeatRequest("g", two, 1)).ErrorCode,
			kerr.UnknownMemberID.Code)
		c.Close()
		c = started(t, store)
		defer c.Close()
		testkit.Equal(t, "heartbeat", handle[*kmsg.HeartbeatResponse](t, c, heartbeatRequest("g", one, 1)).ErrorCode,
			kerr.UnknownMemberID.Code)
		res := handle[*kmsg.OffsetFetchResponse](t, c, fetchRequest("g", 0))
		testkit.Equal(t, "offset", res.Groups[0].Topics[0].Partitions[0].Offset, 7)
	})
}

// A caller that waits is released when its connection ends, and when the coordinator does.
func TestCallersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := started(t, &memory{gate: make(chan struct{})})
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() {
			_, err := c.Handle(ctx, Client{}, joinRequest(3, "g", "", ""))
			errs <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Fatalf("the caller gets %v", err)
		}
		testkit.Equal(t, "callers", len(c.callers), 0)
		go func() {
			_, err := c.Handle(t.Context(), Client{}, commitRequest(9, "h", "", -1, 0, 1))
			errs <- err
		}()
		synctest.Wait()
		c.Close()
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Fatalf("the caller gets %v", err)
		}
		if _, err := c.Handle(t.Context(), Client{}, heartbeatRequest("g", "x", 1)); !errors.Is(err, ErrClosed) {
			t.Fatalf("a request after the end gets %v", err)
		}
		c.Close()
	})
}

// What cannot be stored is refused with a code after which clients try again.
func TestFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memory{err: errors.New("the disk is full")}
		c := started(t, store)
		defer c.Close()
		code := func() int16 {
			res := handle[*kmsg.OffsetCommitResponse](t, c, commitRequest(9, "g", "", -1, 0, 1))
			return res.Topics[0].Partitions[0].ErrorCode
		}
		testkit.Equal(t, "commit", code(), kerr.CoordinatorNotAvailable.Code)
		store.mu.Lock()
		store.err = nil
		store.mu.Unlock()
		testkit.Equal(t, "commit", code(), 0)
	})
}

// Commits that come while others are stored are stored together.
func TestWritesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memory{gate: make(chan struct{})}
		c := started(t, store)
		defer c.Close()
		var callers sync.WaitGroup
		for p := range int32(6) {
			callers.Go(func() { handle[*kmsg.OffsetCommitResponse](t, c, commitRequest(9, "g", "", -1, p, 1)) })
		}
		synctest.Wait()
		store.gate <- struct{}{}
		store.gate <- struct{}{}
		callers.Wait()
		testkit.Equal(t, "rows", len(store.rows), 7)
	})
}

func TestOtherRequests(t *testing.T) {
	c := started(t, &memory{})
	defer c.Close()
	for key, v := range Versions() {
		for _, version := range []int16{v.Min - 1, v.Max + 1} {
			req := kmsg.RequestForKey(int16(key))
			req.SetVersion(version)
			if _, err := c.Handle(t.Context(), Client{}, req); err == nil {
				t.Errorf("%s is answered in version %d", key.Name(), version)
			}
		}
		req := kmsg.RequestForKey(int16(key))
		testkit.Equal(t, key.Name(), req.MaxVersion(), v.Max)
	}
	if _, err := c.Handle(t.Context(), Client{}, kmsg.NewPtrFetchRequest()); err == nil {
		t.Error("a fetch is answered")
	}
}

func TestDamagedStore(t *testing.T) {
	store := &memory{rows: map[string][]byte{"\x01g": {9}}}
	_, err := New(t.Context(), Config{Store: store, Topics: tested})
	if err == nil {
		t.Fatal("a damaged row is read")
	}
	t.Log(err)
}

// Many members of a group and many goroutines end in one generation, although some lose their connections.
func TestManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		c := started(t, store)
		defer c.Close()
		var all sync.WaitGroup
		generations := make(chan int32, 50)
		for n := range 50 {
			all.Go(func() {
				id := ""
				for {
					ctx, cancel := context.WithCancel(t.Context())
					if n%5 == 0 && id == "" {
						go cancel()
					}
					res, err := c.Handle(ctx, Client{ID: "app"}, joinRequest(9, "g", id, ""))
					cancel()
					if err != nil {
						n++
						continue
					}
					join := res.(*kmsg.JoinGroupResponse)
					if join.MemberID != "" {
						id = join.MemberID
					}
					if join.ErrorCode != 0 {
						continue
					}
					var plan []string
					for _, m := range join.Members {
						plan = append(plan, m.MemberID, m.MemberID)
					}
					sync := handle[*kmsg.SyncGroupResponse](t, c, syncRequest(5, "g", id, join.Generation, plan...))
					if sync.ErrorCode == 0 && string(sync.MemberAssignment) == id {
						generations <- join.Generation
						return
					}
				}
			})
		}
		all.Wait()
		close(generations)
		seen := map[int32]bool{}
		for g := range generations {
			seen[g] = true
		}
		testkit.Equal(t, "generations", len(seen), 1)
	})
}
