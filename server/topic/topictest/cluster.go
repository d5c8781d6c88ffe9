package topictest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Cluster is processes over one store and one log.
type Cluster struct {
	Store store.Store
	TTL   time.Duration     // of leases; 0: as it is by default
	Push  *topic.PushSender // nil: nothing is sent to webhooks

	t     testing.TB
	slots int

	log    *commitlog.Local
	mu     sync.Mutex
	epochs map[int]int // of the log, by slot
	nodes  []*Node
}

// NewCluster makes a cluster without processes.
func NewCluster(t testing.TB, slots int) *Cluster {
	s := embeddedtest.NewDisk(nil).Open(t, time.Now)
	return &Cluster{t: t, Store: s, slots: slots, log: commitlog.NewLocal(records.Of(s), time.Now), epochs: map[int]int{}}
}

// fenced is the log as one owner of a slot has it: it takes nothing from an owner that another
// one has followed, as the brokers do for an earlier producer of the same transactional id.
type fenced struct {
	commitlog.Log
	of          *Cluster
	slot, epoch int
	gate        *Gate
}

func (c *Cluster) openLog(ctx context.Context, slot int, g *Gate) (*fenced, error) {
	c.mu.Lock()
	c.epochs[slot]++
	f := &fenced{Log: c.log, of: c, slot: slot, epoch: c.epochs[slot], gate: g}
	c.mu.Unlock()
	// Appends that others began before have their positions, and are durable before this
	// one is.
	_, err := c.log.Append(ctx, []commitlog.Append{{
		Partition: commitlog.Partition{Topic: 1 << 40}, Messages: []*commitlog.Message{{}},
	}})
	return f, err
}

func (f *fenced) Begin(ctx context.Context, appends []commitlog.Append) (*commitlog.Pending, error) {
	if err := f.gate.pass(ctx); err != nil {
		return nil, err
	}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.epoch != f.of.epochs[f.slot] {
		return nil, commitlog.ErrFenced
	}
	return f.Log.Begin(ctx, appends)
}

// Gate is what a process's calls to the outside pass: shut while the process hangs or is cut
// off.
type Gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
}

// Set shuts or opens the gate.
func (g *Gate) Set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

func (g *Gate) pass(ctx context.Context) error {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut == nil {
		return nil
	}
	select {
	case <-shut:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
}

// gated is the store behind a process's gate.
type gated struct {
	store.Store
	*Gate
}

func (g gated) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	if err := g.Gate.pass(ctx); err != nil {
		return nil, err
	}
	return g.Store.Get(ctx, k, c)
}

func (g gated) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	if err := g.Gate.pass(ctx); err != nil {
		return nil, err
	}
	return g.Store.BatchGet(ctx, k, c)
}

func (g gated) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := g.Gate.pass(ctx); err != nil {
		return store.Page{}, err
	}
	return g.Store.Query(ctx, q)
}

func (g gated) Transact(ctx context.Context, p store.Plan) error {
	if err := g.Gate.pass(ctx); err != nil {
		return err
	}
	return g.Store.Transact(ctx, p)
}

func (g gated) BatchWrite(ctx context.Context, w []store.Write) error {
	if err := g.Gate.pass(ctx); err != nil {
		return err
	}
	return g.Store.BatchWrite(ctx, w)
}

// Node is a process.
type Node struct {
	*topic.SlotManager
	Name string
	Gate *Gate
	Stop func() // in order
}

// Open makes the service of a slot for a process.
func (c *Cluster) Open(g *Gate, s store.Store) func(context.Context, storage.Slot) (*topic.Service, func(), error) {
	return func(ctx context.Context, slot storage.Slot) (*topic.Service, func(), error) {
		log, err := c.openLog(ctx, slot.Number, g)
		if err != nil {
			return nil, nil, err
		}
		service, err := topic.New(ctx, topic.Config{
			Slot: slot, Store: s, Log: log, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Push: c.Push,
			Audit: func(context.Context, string, string, string) (func(code, result string), error) {
				return func(string, string) {}, nil
			},
		})
		return service, func() {}, err
	}
}

// Start starts a process.
func (c *Cluster) Start(name string) *Node {
	c.t.Helper()
	n := &Node{Name: name, Gate: &Gate{}}
	s := gated{c.Store, n.Gate}
	var err error
	n.SlotManager, err = topic.NewSlotManager(topic.SlotManagerConfig{Store: s, Process: name, Slots: c.slots, TTL: c.TTL,
		Open: c.Open(n.Gate, s), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, func() {}) }()
	n.Stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	return n
}

// Close stops all processes.
func (c *Cluster) Close() {
	for _, n := range c.All() {
		n.Gate.Set(false)
		n.Stop()
	}
}

// All are the processes that run.
func (c *Cluster) All() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Node(nil), c.nodes...)
}

// Remove takes a process that has stopped out.
func (c *Cluster) Remove(n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = slices.DeleteFunc(c.nodes, func(other *Node) bool { return other == n })
}

// In calls f with the service that has a topic, and waits for one until ctx ends.
func (c *Cluster) In(ctx context.Context, name string, f func(*topic.Service) error) error {
	for {
		for _, n := range c.All() {
			s, leave, ok := n.Enter(storage.SlotOf(name, c.slots))
			if !ok {
				continue
			}
			err := f(s)
			leave()
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
