// Package link carries what was committed from the process that knows of it to the
// processes that hold streams of those whom it concerns.
//
// It owns the transport (one RPC service on a listener of its own, between processes
// that share a secret), the queues in front of it, and the way of a change to its
// servers: members, rows, links. It does not own who is where (package routing), the
// numbers that make losses noticed (package delivery/link, on which this stands),
// or what a hub does with what it gets (package delivery).
//
// # Rules (design §6 and §8, K-119, K-120)
//
// A change goes to each server once, however many members it concerns, and in the
// order in which it was handed over. Live changes that find no room are left out: the
// durable path repairs them. Repairs and receipts that do are not: the link, or all
// links, then show a gap, and the streams behind it synchronise anew. A link has one
// envelope on the way at a time; while it is, what comes gathers for the next.
//
// # Trust
//
// Each request carries a proof made of the shared secret, for its sender, its
// receiver and its minute; the secret itself is never sent. Without TLS the network
// between the processes must be one that nobody else can write to. With TLS both sides
// show certificates of the same authority.
//
// # Concurrency
//
// A Mesh may be used by many goroutines; Run is called once.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"buf.build/go/protovalidate"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
	numbers "github.com/parley-chat/parley/server/delivery/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/wait"
)

// What processes derive their shared secret for from the key that they share, and its
// size in bytes.
const (
	Purpose    = "links"
	SecretSize = 32
)

// Hub is the receiving end in a process with streams; *delivery.Hub is one.
type Hub interface {
	numbers.Hub
	Stream(user, id string) (*delivery.Stream, error)
	Extend(user, session, id string, until time.Time) error
}

// Config sets a Mesh up. Zero durations and sizes take the defaults.
type Config struct {
	Process    string // id of this process
	Generation string // of the store
	Table      routing.Table
	Recipients *routing.Recipients
	Secret     []byte // shared by all processes; at least 16 bytes
	// TLS, if given, is spoken to other processes, and must hold a certificate and the
	// authority's.
	TLS    *tls.Config
	Hub    Hub // nil in a process without streams
	Clock  func() time.Time
	Logger *slog.Logger

	Keepalive  time.Duration // 3 s
	Discover   time.Duration // between looks for new servers; 2 s
	Call       time.Duration // for one RPC; 5 s
	Forget     time.Duration // of silence, after which a process counts as gone or cut off; 15 s
	QueueItems int           // changes waiting for one server; 8,192
	QueueBytes int           // of their events; 16 MiB
}

func (c Config) withDefaults() (Config, error) {
	if c.Process == "" || c.Generation == "" || c.Table == nil || c.Recipients == nil || c.Clock == nil || c.Logger == nil {
		return c, errors.New("link: process, generation, table, recipients, clock and logger are required")
	}
	if len(c.Secret) < 16 {
		return c, errors.New("link: the shared secret must have at least 16 bytes")
	}
	for p, d := range map[*time.Duration]time.Duration{
		&c.Keepalive: 3 * time.Second, &c.Discover: 2 * time.Second, &c.Call: 5 * time.Second, &c.Forget: 15 * time.Second,
	} {
		if *p == 0 {
			*p = d
		}
	}
	if c.QueueItems == 0 {
		c.QueueItems = 8192
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = 16 << 20
	}
	return c, nil
}

// Mesh is the links of one process.
type Mesh struct {
	cfg       Config
	sender    *numbers.Sender
	receiver  *numbers.Receiver // nil without a hub
	validator protovalidate.Validator
	client    *http.Client
	lanes     []chan job
	live      context.Context // until the mesh ends
	end       context.CancelFunc
	closing   chan struct{} // lanes are to finish
	finish    func()
	routing   sync.WaitGroup // lanes
	running   sync.WaitGroup // peers

	mu    sync.Mutex
	peers map[string]*peer
	left  map[string]bool // servers that have said goodbye; no id is used again

	counters counters
}

type counters struct {
	sent, failed, dropped, lost, skips, unrouted atomic.Int64
}

// Stats counts what a Mesh did.
type Stats struct {
	Peers    int   // servers with a link now
	Silent   int   // of them, those that have not answered for as long as Config.Forget
	Sent     int64 // envelopes answered, keepalives included
	Failed   int64 // calls that failed
	Dropped  int64 // live changes left out, for the durable path to repair
	Lost     int64 // envelopes and repairs given up, which their receivers notice
	Skips    int64 // new epochs on all links because something could not be routed
	Unrouted int64 // live changes whose members or servers could not be found out
	Received numbers.Stats
}

// Stats returns the counters.
func (m *Mesh) Stats() Stats {
	m.mu.Lock()
	n, silent, now := len(m.peers), 0, m.cfg.Clock()
	for _, p := range m.peers {
		if now.Sub(p.answered()) >= m.cfg.Forget {
			silent++
		}
	}
	m.mu.Unlock()
	s := Stats{
		Peers: n, Silent: silent, Sent: m.counters.sent.Load(), Failed: m.counters.failed.Load(), Dropped: m.counters.dropped.Load(),
		Lost: m.counters.lost.Load(), Skips: m.counters.skips.Load(), Unrouted: m.counters.unrouted.Load(),
	}
	if m.receiver != nil {
		s.Received = m.receiver.Stats()
	}
	return s
}

// New makes a Mesh without links.
func New(cfg Config) (*Mesh, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Mesh{cfg: cfg, sender: numbers.NewSender(cfg.Process, cfg.Generation), client: newClient(cfg.TLS), peers: map[string]*peer{}, left: map[string]bool{}}
	if m.validator, err = protovalidate.New(protovalidate.WithMessages(requests...)); err != nil {
		return nil, fmt.Errorf("link: rules of messages: %w", err)
	}
	if cfg.Hub != nil {
		if m.receiver, err = numbers.NewReceiver(numbers.ReceiverConfig{Generation: cfg.Generation, Hub: cfg.Hub, Silence: cfg.Forget}); err != nil {
			return nil, err
		}
	}
	m.live, m.end = context.WithCancel(context.Background())
	m.closing = make(chan struct{})
	m.finish = sync.OnceFunc(func() { close(m.closing) })
	m.startLanes()
	return m, nil
}

// ErrKey says that none of the servers that are listed shares this process's key: with
// them it would serve users whom they refuse, and refuse theirs.
var ErrKey = errors.New("no server that is listed has the key of this process: key-file must be the same for all")

// Open finds the servers that there are and waits until each has answered, is gone, or
// has been given the time in which a dead one would be. It must be called before Run,
// Deliver, Repair and Receipt, in a process that is listed in the table: a server that
// cannot be reached sees there that it misses something. ErrKey says that all servers
// that there are have another key.
func (m *Mesh) Open(ctx context.Context) error {
	for began := m.cfg.Clock(); ; {
		servers, err := m.discover(ctx)
		if err != nil {
			return fmt.Errorf("find servers: %w", err)
		}
		all, waiting, refused := 0, 0, []string(nil)
		for _, s := range servers {
			p := m.peer(s)
			if p == nil {
				continue
			}
			if all++; p.met() {
				continue
			}
			waiting++
			if p.refused() {
				refused = append(refused, s.ID+" at "+s.Addr)
			}
		}
		if waiting == 0 {
			return nil
		}
		// One that is not reached, or has taken the proof of another process, may have it.
		if len(refused) == all {
			return fmt.Errorf("%w (%s)", ErrKey, strings.Join(refused[:min(3, len(refused))], ", "))
		}
		if m.cfg.Clock().Sub(began) >= m.cfg.Forget {
			m.cfg.Logger.Warn("link: going on without servers that do not answer; their streams synchronise again and again until they do", "servers", waiting)
			return nil
		}
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d servers do not answer: %w", waiting, len(servers), err)
		}
	}
}

// discover brings the links in line with the servers that there are.
func (m *Mesh) discover(ctx context.Context) ([]routing.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	servers, err := m.cfg.Table.Servers(ctx)
	if err != nil {
		return nil, err
	}
	listed := map[string]bool{}
	var others []string
	for _, s := range servers {
		listed[s.ID] = true
		m.peer(s)
		if s.ID != m.cfg.Process && s.Generation == m.cfg.Generation {
			others = append(others, s.ID)
		}
	}
	now := m.cfg.Clock()
	if m.receiver != nil {
		m.receiver.Expect(others, now)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.peers {
		// One that answers is there, whatever the table says.
		if !listed[id] && now.Sub(p.answered()) >= m.cfg.Forget {
			p.stop()
			delete(m.peers, id)
			m.sender.Close(id)
		}
	}
	return servers, nil
}

// peer returns the link to a server, and opens it if there is none; nil for this
// process itself, processes that cannot be sent to, servers of other generations, and
// when the mesh has ended.
func (m *Mesh) peer(s routing.Server) *peer {
	if s.ID == m.cfg.Process || s.Addr == "" || s.Generation != m.cfg.Generation {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[s.ID]; p != nil || m.left[s.ID] {
		return p
	}
	if m.live.Err() != nil || len(m.peers) >= routing.MaxServers {
		return nil
	}
	p := m.newPeer(s)
	m.peers[s.ID] = p
	m.running.Go(p.run)
	return p
}

// maxLeft bounds the servers that are remembered as gone; one that is forgotten costs
// calls that are not answered while it is still looked up.
const maxLeft = 1 << 10

// leave ends the link to a server that has no streams any more, and will have none.
func (m *Mesh) leave(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.left) >= maxLeft {
		clear(m.left)
	}
	m.left[id] = true
	if p := m.peers[id]; p != nil {
		p.stop()
		delete(m.peers, id)
		m.sender.Close(id)
	}
}

// Run keeps the links until ctx ends, then sends what is waiting and says goodbye.
func (m *Mesh) Run(ctx context.Context) error {
	look := time.NewTicker(m.cfg.Discover)
	defer look.Stop()
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			m.Close()
			return nil
		case <-look.C:
			if _, err := m.discover(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("link: servers cannot be listed, links stay as they are", "error", err)
			}
		case <-beat.C:
			if m.receiver != nil {
				m.receiver.Tick(m.cfg.Clock())
			}
		}
	}
}

// Close ends all links, each after what is waiting for it, within seconds.
func (m *Mesh) Close() {
	m.finish()
	m.routing.Wait()
	m.mu.Lock() // no link is made from here on
	m.end()
	m.mu.Unlock()
	m.running.Wait()
	m.client.CloseIdleConnections()
}

// Deliver sends a change that was just committed to the servers that it concerns,
// this process aside. It never waits; what finds no room is left to the durable
// path.
func (m *Mesh) Deliver(d delivery.Delivery) {
	select {
	case m.lane(d.ChatID) <- job{delivery: d}:
	default:
		m.counters.dropped.Add(1)
	}
}

// Receipt sends a user's own state in a chat to the user's other servers. It never
// waits. Nothing repairs receipts: one that finds no room makes the streams of all
// servers synchronise anew.
func (m *Mesh) Receipt(user, chatID string, state *chatv1.MemberState) {
	select {
	case m.lane(chatID) <- job{receipt: &numbers.Receipt{UserID: user, ChatID: chatID, State: state}}:
	default:
		m.skip()
	}
}

// Repair sends a change to all servers that it concerns, and returns once it is on
// its links: from then on a loss is noticed at the other end. Where the servers cannot
// be found out, it is left out, noticeably (K-119). Errors are those of reading the
// members, after which it must be called again.
func (m *Mesh) Repair(ctx context.Context, d delivery.Delivery) error {
	if d.Generation != m.cfg.Generation {
		return nil // of a store that is not this one: every hub would drop it
	}
	members, err := m.cfg.Recipients.Of(ctx, d.ChatID, d.MembershipVersion)
	if err != nil {
		return err
	}
	return m.repair(ctx, d, members)
}

func (m *Mesh) skip() {
	m.counters.skips.Add(1)
	m.sender.Skip()
}
