package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// fixture is a machine with a log in memory.
type fixture struct {
	testing.TB
	p       *Machine
	batches []*commitlog.Batch
	end     int64
	now     time.Time
}

func newFixture(t testing.TB) *fixture {
	r := &fixture{TB: t, now: time.Unix(1_000_000, 0)}
	r.p = New(0, 0, 0, r)
	return r
}

// At returns batches; all are in memory.
func (r *fixture) At(position int64) (*commitlog.Batch, Residence) {
	i, _ := slices.BinarySearchFunc(r.batches, position, func(b *commitlog.Batch, p int64) int {
		if b.End() <= p {
			return -1
		}
		return 1
	})
	if i == len(r.batches) {
		return nil, Beyond
	}
	return r.batches[i], Resident
}

// publish stores messages in one batch; key and type of each are those of of, as
// "key" or "key:type".
func (r *fixture) publish(of ...string) {
	r.Helper()
	var list []*commitlog.Message
	for _, s := range of {
		m := &commitlog.Message{Payload: []byte(fmt.Sprint("message ", len(list)))}
		for i, c := range s {
			if c == ':' {
				m.Key, m.Type = s[:i], s[i+1:]
			}
		}
		if m.Type == "" {
			m.Key = s
		}
		list = append(list, m)
	}
	b, err := commitlog.NewBatch(r.end, r.now, list)
	if err != nil {
		r.Fatal(err)
	}
	r.batches = append(r.batches, b)
	r.end = b.End()
	r.p.Published(r.end)
}

// messages publishes n messages without keys, 100 in a batch.
func (r *fixture) messages(n int) {
	r.Helper()
	for ; n > 0; n -= 100 {
		r.publish(make([]string, min(n, 100))...)
	}
}

func plain(name string) Config {
	return Config{
		Name: name, Generation: 1, MaxAttempts: 5, InitialBackoff: time.Second, MaxBackoff: 5 * time.Minute,
		Lease: 30 * time.Second, HoldsPaused: true,
	}
}

// group adds a group that begins at the end.
func (r *fixture) group(c Config) *GroupState { return r.begin(c, Begin{Start: r.end}) }

func (r *fixture) begin(c Config, b Begin) *GroupState {
	r.Helper()
	g, _, _, err := r.p.Subscribe(c, b)
	if err != nil {
		r.Fatal(err)
	}
	return g
}

func (r *fixture) member(g *GroupState, name string) *Member { return r.picky(g, name, "") }

// picky attaches a member that takes messages of one type.
func (r *fixture) picky(g *GroupState, name, kind string) *Member {
	r.Helper()
	m, err := g.Attach(name, kindFilter(kind), NewBudget(1000, 8<<20, true))
	if err != nil {
		r.Fatal(err)
	}
	return m
}

// delivered is a message that was delivered.
type delivered struct {
	position int64
	member   string
	attempt  int
}

func (r *fixture) next(g *GroupState) []delivered {
	r.Helper()
	pieces, _ := g.Next(r.now, 1_000_000, nil)
	var list []delivered
	for _, p := range pieces {
		for i := p.From; i < p.To; i++ {
			list = append(list, delivered{p.Batch.Base + int64(i), p.Member.Name(), p.Attempt})
		}
	}
	return list
}

func (r *fixture) positions(g *GroupState) []int64 {
	r.Helper()
	var list []int64
	for _, h := range r.next(g) {
		list = append(list, h.position)
	}
	return list
}

// ack acknowledges positions from from to to, and wants that nothing is refused.
func (r *fixture) ack(m *Member, from, to int64) {
	r.Helper()
	if _, refused := m.Ack(Positions{Base: from, Count: to - from}, nil); len(refused) > 0 {
		r.Fatalf("refused: %v", refused)
	}
}

// work takes and acknowledges everything.
func (r *fixture) work(g *GroupState, m *Member) (n int) {
	r.Helper()
	for {
		list := r.next(g)
		if len(list) == 0 {
			return n
		}
		n += len(list)
		for _, h := range list {
			r.ack(m, h.position, h.position+1)
		}
	}
}

// wakeAt returns when Wake has something to do.
func (g *GroupState) wakeAt() (time.Time, bool) {
	at, ok := g.due()
	return time.Unix(0, at), ok
}

func (r *fixture) wait(d time.Duration) { r.now = r.now.Add(d) }

func same[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, should be %v", what, got, want)
	}
}

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, should be %v", what, got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func seq(from, to int64) (list []int64) {
	for ; from < to; from++ {
		list = append(list, from)
	}
	return list
}

// TrimLimit and TrimLimitOfLiving are the two of TrimLimits.
func (p *Machine) TrimLimit(c Cutoffs) int64 {
	limit, _ := p.TrimLimits(c)
	return limit
}

func (p *Machine) TrimLimitOfLiving(c Cutoffs) int64 {
	_, living := p.TrimLimits(c)
	return living
}
