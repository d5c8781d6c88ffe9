package routing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

type holder struct {
	*routing.Lease
	t     *testing.T
	clock *clock
	table *routingtest.Memory
	lost  int
	atRow []bool // at each loss: whether all rows were there
}

func newHolder(t *testing.T) *holder {
	t.Helper()
	c := &clock{at: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	h := &holder{t: t, clock: c, table: routingtest.New(c.now)}
	var err error
	h.Lease, err = routing.NewLease(routing.LeaseConfig{
		Table: h.table, Server: routing.Server{ID: "a", Addr: "h:1", Generation: "g"}, Clock: c.now,
		Logger: slog.New(slog.DiscardHandler),
		Lost: func() {
			h.lost++
			h.atRow = append(h.atRow, h.where("u0") != "" && h.where("u1") != "")
		},
	})
	testkit.Must(t, err)
	testkit.Must(t, h.Claim(t.Context()))
	return h
}

func (h *holder) where(user string) string {
	m, err := h.table.Lookup(context.Background(), []string{user})
	if err != nil {
		return ""
	}
	return names(m[user])
}

func (h *holder) register(user string) func() {
	h.t.Helper()
	release, err := h.Register(h.t.Context(), user)
	testkit.Must(h.t, err)
	return release
}

// renewals runs n renewals as Run would.
func (h *holder) renewals(n int) {
	for range n {
		h.clock.pass(3 * time.Second)
		h.Renew(h.t.Context())
	}
}

func TestRegisterIsAcknowledged(t *testing.T) {
	h := newHolder(t)
	h.table.Fail(routing.ErrUnavailable)
	if _, err := h.Register(t.Context(), "u0"); !errors.Is(err, routing.ErrUnavailable) {
		t.Fatalf("registered without an acknowledgement: %v", err)
	}
	h.table.Fail(nil)
	one, two := h.register("u0"), h.register("u0")
	if h.where("u0") != "a/1" {
		t.Fatal("no row")
	}
	one()
	one() // twice is once
	h.renewals(40)
	if h.where("u0") != "a/1" || h.lost != 0 {
		t.Fatalf("row of an open stream: %q, %d losses", h.where("u0"), h.lost)
	}
	two()
	h.renewals(1)
	if h.where("u0") == "" {
		t.Fatal("the row went at once")
	}
	h.renewals(4)
	if h.where("u0") != "" || h.Stats().Rows != 0 {
		t.Fatal("the row stays although its streams have ended")
	}
}

// Losing the table costs a synchronisation and nothing else; it comes after the rows.
func TestFlush(t *testing.T) {
	h := newHolder(t)
	for i := range 1200 {
		h.register(fmt.Sprint("u", i))
	}
	h.table.Flush()
	h.renewals(1)
	if h.lost != 1 || !slices.Equal(h.atRow, []bool{true}) {
		t.Fatalf("%d losses, rows there: %v", h.lost, h.atRow)
	}
	for i := range 1200 {
		if h.where(fmt.Sprint("u", i)) != "a/2" {
			t.Fatalf("row of u%d is not back: %q", i, h.where(fmt.Sprint("u", i)))
		}
	}
	h.renewals(20)
	if h.lost != 1 {
		t.Fatalf("%d losses", h.lost)
	}
}

func TestExpiredLeaseIsClaimedAnew(t *testing.T) {
	h := newHolder(t)
	h.register("u0")
	h.register("u1")
	h.clock.pass(time.Minute) // the process stood still
	if h.where("u0") != "" {
		t.Fatal("rows of a lease that has expired")
	}
	h.renewals(1)
	if h.where("u0") != "a/2" || h.lost != 1 || !h.atRow[0] {
		t.Fatalf("%q, %d losses", h.where("u0"), h.lost)
	}
}

// A part of the rows vanished, as in a failover to a replica that lags.
func TestLostRowsAreFound(t *testing.T) {
	h := newHolder(t)
	h.register("u0")
	h.register("u1")
	testkit.Must(t, h.table.Remove(t.Context(), h.Current(), []string{"u1"}))
	h.renewals(routing.Buckets)
	if h.where("u1") != "a/1" || h.lost != 1 || h.Stats().Missing != 1 || !h.atRow[0] {
		t.Fatalf("%q, %d losses, %+v", h.where("u1"), h.lost, h.Stats())
	}
}

// noRows is a table that takes a lease and then no rows.
type noRows struct {
	*routingtest.Memory
	fail bool
}

func (n *noRows) Put(ctx context.Context, s routing.Server, users []string, ttl time.Duration) (int, error) {
	if n.fail {
		return 0, routing.ErrUnavailable
	}
	return n.Memory.Put(ctx, s, users, ttl)
}

// A claim that was cut off before all rows were there is not taken for done.
func TestClaimCutOff(t *testing.T) {
	h := newHolder(t)
	table := &noRows{Memory: h.table}
	h.SetTable(table)
	h.register("u0")
	h.register("u1")
	h.table.Flush()
	table.fail = true
	h.renewals(1)
	if h.lost != 0 {
		t.Fatal("notified of a loss before the rows were there")
	}
	table.fail = false
	h.renewals(1)
	if h.lost != 1 || !h.atRow[0] || h.where("u0") != "a/3" {
		t.Fatalf("%d losses, %v, %q", h.lost, h.atRow, h.where("u0"))
	}
}

// While nothing is known, streams are marked once for each lease's length, and once
// more when the table is back.
func TestTableAway(t *testing.T) {
	h := newHolder(t)
	h.register("u0")
	h.register("u1")
	h.table.Fail(routing.ErrUnavailable)
	h.renewals(2)
	if h.lost != 0 {
		t.Fatal("lost before the lease was over")
	}
	h.renewals(1)
	if h.lost != 1 {
		t.Fatalf("%d losses after a lease's length", h.lost)
	}
	h.renewals(3)
	if h.lost != 2 {
		t.Fatalf("%d losses after two", h.lost)
	}
	h.table.Fail(nil)
	h.renewals(1)
	if h.lost != 3 || !h.atRow[2] || h.where("u0") != "a/2" {
		t.Fatalf("%d losses, %v, %q", h.lost, h.atRow, h.where("u0"))
	}
}

// A row put while a new lease is claimed belongs to the new one in the end.
func TestRegisterBesideClaim(t *testing.T) {
	h := newHolder(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			release, err := h.Register(context.Background(), fmt.Sprint("u", i))
			if err != nil {
				t.Error(err)
				return
			}
			if i%3 == 0 {
				release()
			}
		}
	}()
	for range 20 {
		h.table.Flush()
		h.renewals(1)
	}
	<-done
	h.renewals(1)
	for i := range 2000 {
		if u := fmt.Sprint("u", i); i%3 != 0 && h.where(u) == "" {
			t.Fatalf("%s has a stream and no row", u)
		}
	}
}

func TestRunGivesUpItsLease(t *testing.T) {
	h := newHolder(t)
	h.register("u0")
	ctx, cancel := context.WithCancel(t.Context())
	testkit.Must(t, h.Run(ctx, cancel))
	if h.where("u0") != "" {
		t.Fatal("the lease outlives its process")
	}
}

func TestRecipients(t *testing.T) {
	c := &clock{at: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	lists := routingtest.New(c.now)
	version, users, loads, fail := int64(5), []string{"u", "v"}, 0, error(nil)
	load := func(context.Context, string) (int64, []string, error) {
		loads++
		return version, users, fail
	}
	r := routing.NewRecipients("g", lists, load)
	want := func(r *routing.Recipients, at int64, n int, list ...string) {
		t.Helper()
		got, err := r.Members(t.Context(), "c", at)
		testkit.Must(t, err)
		if !slices.Equal(got, list) || loads != n {
			t.Fatalf("%v after %d loads, want %v after %d", got, loads, list, n)
		}
	}
	want(r, 5, 1, "u", "v")
	want(r, 3, 1, "u", "v") // newer is good enough
	other := routing.NewRecipients("g", lists, load)
	want(other, 5, 1, "u", "v") // from the shared cache
	version, users = 6, []string{"u"}
	want(other, 6, 2, "u")
	want(r, 6, 2, "u")                                              // never an older list than the event's, L-124
	want(routing.NewRecipients("restored", lists, load), 6, 3, "u") // not another generation's
	loads--
	lists.Fail(routing.ErrUnavailable)
	version, users = 7, []string{"u", "w"}
	want(r, 7, 3, "u", "w")
	if _, err := r.Members(t.Context(), "c", 8); !errors.Is(err, routing.ErrStale) {
		t.Fatalf("a list that is too old: %v", err)
	}
	fail = errors.New("store")
	if _, err := r.Members(t.Context(), "c", 8); !errors.Is(err, fail) {
		t.Fatal(err)
	}
	if got := r.Stats(); got != (routing.RecipientStats{Local: 1, Shared: 1, Loaded: 2}) {
		t.Fatalf("%+v", got)
	}
}

func BenchmarkLookup(b *testing.B) {
	m := routingtest.New(time.Now)
	s := routing.Server{"a", "h:1", "g", 1}
	_ = m.Claim(b.Context(), s, time.Hour)
	var users []string
	for i := range 100 {
		users = append(users, fmt.Sprint("u", i))
	}
	_, _ = m.Put(b.Context(), s, users, time.Hour)
	for b.Loop() {
		if got, err := m.Lookup(b.Context(), users); err != nil || len(got) != 100 {
			b.Fatal(got, err)
		}
	}
}

// A process that starts before the table is there waits for it, not longer than it is
// told to.
func TestRunWaitsForTheTable(t *testing.T) {
	table := routingtest.New(time.Now)
	run := func(ctx context.Context, patience time.Duration, ready func()) error {
		l, err := routing.NewLease(routing.LeaseConfig{
			Table: table, Server: routing.Server{ID: "sender", Generation: "g"}, Lost: func() {}, Clock: time.Now,
			Logger: slog.New(slog.DiscardHandler), TTL: 90 * time.Millisecond, Patience: patience,
		})
		testkit.Must(t, err)
		return l.Run(ctx, ready)
	}
	table.Fail(routing.ErrUnavailable)
	if err := run(t.Context(), 20*time.Millisecond, func() { t.Error("claimed what is away") }); !errors.Is(err,
		routing.ErrUnavailable) {
		t.Fatalf("waited in vain: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	claimed, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- run(ctx, -1, func() { close(claimed) }) }()
	table.Fail(nil)
	<-claimed
	list, err := table.Servers(t.Context())
	testkit.Must(t, err)
	if len(list) != 1 || list[0].Addr != "" {
		t.Errorf("listed: %v", list)
	}
	cancel()
	testkit.Must(t, <-done)
	if list, err = table.Servers(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("still listed: %v %v", list, err)
	}
}
