// Package link carries committed changes from the process that made them to the
// processes that hold streams of the users concerned.
//
// It owns the transport (one RPC service on a listener of its own, between processes that share a
// secret), the queues in front of it, and the routing of a change: its members, their servers,
// the links to those. It does not own the table of users and servers (package routing), the
// sequence numbers by which losses are detected (package delivery/linkseq), or what a hub does
// with a change (package delivery).
//
// # Rules
//
// A change goes to each server once, regardless of the number of members that it concerns,
// in the order of the calls that pass changes. A live change that finds its queue full is
// dropped: the durable path repairs it. Nothing repairs a repair or a receipt that is
// dropped, so the link, or all links, then show a gap, and the streams behind it
// resynchronise. A link has one envelope in flight; the changes that arrive meanwhile go
// into the next one.
//
// A message of a chat that several servers write to is forwarded to the one that the chat
// prefers. That is a hint: without an answer the message is stored where it came to.
//
// # Trust
//
// Each request carries a credential: an HMAC by the shared secret of its sender, its
// receiver and its time. The secret itself is never sent. A process that has it is trusted
// to name the sender of a message. Without TLS no other party may be able to write to the
// network between the processes. With TLS both sides present certificates of the same
// authority.
//
// # Concurrency
//
// A Mesh is safe for concurrent use; Run is called once.
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
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/routing"
)

// Purpose and size, in bytes, of the secret that processes derive from their shared key.
const (
	Purpose    = "links"
	SecretSize = 32
)

// Hub is the receiving end in a process with streams; *delivery.Hub is one.
type Hub interface {
	linkseq.Hub
	Stream(user, id string) (*delivery.Stream, error)
	Extend(user, session, id string, until time.Time) error
}

// Config configures a Mesh. Zero durations and sizes take the defaults.
type Config struct {
	Process    string // id of this process
	Generation string // of the store
	Table      routing.Table
	Recipients *routing.Recipients
	Secret     []byte // shared by all processes; at least 16 bytes
	// TLS, if given, is used for calls to other processes; it must hold a certificate and
	// the authority's.
	TLS *tls.Config
	Hub Hub // nil in a process without streams
	// Accept, if given, stores messages that other processes forward here.
	Accept func(context.Context, chat.Send) (chat.Sent, error)
	// Carried, if given, serves calls of other processes that are none of this package's:
	// those made with Remote. From says whose a call is.
	Carried http.Handler
	Clock   func() time.Time
	Logger  *slog.Logger

	Keepalive  time.Duration // 3 s
	Discover   time.Duration // between two reads of the table of servers; 2 s
	Call       time.Duration // for one RPC; 5 s
	DeadAfter  time.Duration // without an answer, after which a process counts as dead or cut off; 15 s
	Avoid      time.Duration // of a server that did not answer to a forwarded message; 10 s
	QueueItems int           // changes waiting for one server; 8,192
	QueueBytes int           // of their events; 16 MiB
}

func (c Config) withDefaults() (Config, error) {
	if c.Process == "" || c.Generation == "" || c.Table == nil || c.Recipients == nil || c.Clock == nil ||
		c.Logger == nil {
		return c, errors.New("link: process, generation, table, recipients, clock and logger are required")
	}
	if len(c.Secret) < 16 {
		return c, errors.New("link: the shared secret must have at least 16 bytes")
	}
	for p, d := range map[*time.Duration]time.Duration{
		&c.Keepalive: 3 * time.Second, &c.Discover: 2 * time.Second, &c.Call: 5 * time.Second, &c.DeadAfter: 15 * time.Second,
		&c.Avoid: 10 * time.Second,
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
	sender    *linkseq.Sender
	receiver  *linkseq.Receiver // nil without a hub
	validator protovalidate.Validator
	client    *http.Client
	carrier   *http.Client // of calls made with Remote: their messages wait for no envelope, nor envelopes for them
	workers   []chan job
	live      context.Context // until the mesh ends
	end       context.CancelFunc
	closing   chan struct{} // closed when the workers are to finish
	finish    func()
	routing   sync.WaitGroup // of the workers
	running   sync.WaitGroup // of the peers

	mu       sync.Mutex
	peers    map[string]*peer
	departed map[string]bool // servers that have closed their link; no id is used again

	counters counters
}

type counters struct {
	sent, failed, dropped, lost, epochBumps, unrouted, forwarded atomic.Int64
}

// Stats counts what a Mesh did.
type Stats struct {
	Peers       int   // servers with a link now
	Unreachable int   // of them, those that have not answered for Config.DeadAfter
	Sent        int64 // envelopes answered, keepalives included
	Failed      int64 // calls that failed
	Dropped     int64 // live changes dropped, for the durable path to repair
	Lost        int64 // envelopes and repairs given up, which their receivers detect
	EpochBumps  int64 // new epochs on all links because something could not be routed
	Unrouted    int64 // live changes whose members or servers could not be looked up
	Forwarded   int64 // messages stored by the server that their chat prefers
	Received    linkseq.Stats
}

// Stats returns the counters.
func (m *Mesh) Stats() Stats {
	m.mu.Lock()
	n, unreachable, now := len(m.peers), 0, m.cfg.Clock()
	for _, p := range m.peers {
		if now.Sub(p.lastSeen()) >= m.cfg.DeadAfter {
			unreachable++
		}
	}
	m.mu.Unlock()
	s := Stats{
		Peers: n, Unreachable: unreachable, Sent: m.counters.sent.Load(), Failed: m.counters.failed.Load(),
		Dropped: m.counters.dropped.Load(),
		Lost:    m.counters.lost.Load(), EpochBumps: m.counters.epochBumps.Load(), Unrouted: m.counters.unrouted.Load(),
		Forwarded: m.counters.forwarded.Load(),
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
	m := &Mesh{cfg: cfg, sender: linkseq.NewSender(cfg.Process, cfg.Generation), client: newClient(cfg.TLS),
		carrier: newClient(cfg.TLS),
		peers:   map[string]*peer{}, departed: map[string]bool{}}
	if m.validator, err = protovalidate.New(protovalidate.WithMessages(requests...)); err != nil {
		return nil, fmt.Errorf("link: rules of messages: %w", err)
	}
	if cfg.Hub != nil {
		if m.receiver, err = linkseq.NewReceiver(linkseq.ReceiverConfig{Generation: cfg.Generation, Hub: cfg.Hub,
			DeadAfter: cfg.DeadAfter}); err != nil {
			return nil, err
		}
	}
	m.live, m.end = context.WithCancel(context.Background())
	m.closing = make(chan struct{})
	m.finish = sync.OnceFunc(func() { close(m.closing) })
	m.startWorkers()
	return m, nil
}

// ErrKey says that none of the listed servers shares this process's key: this process
// would accept sessions that they refuse, and refuse theirs.
var ErrKey = errors.New("no server that is listed has the key of this process: key-file must be the same for all")

// Open connects to the listed servers and waits until each has answered, has departed, or
// has not answered for Config.DeadAfter. It must be called before Run, Deliver, Repair and
// Receipt, in a process that is listed in the table: a server that cannot be reached sees
// there that it misses something. ErrKey says that all listed servers have another key.
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
			if all++; p.connected() {
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
		// A server that has not answered may share the key.
		if len(refused) == all {
			return fmt.Errorf("%w (%s)", ErrKey, strings.Join(refused[:min(3, len(refused))], ", "))
		}
		if m.cfg.Clock().Sub(began) >= m.cfg.DeadAfter {
			m.cfg.Logger.Warn("link: starting without servers that do not answer; their streams resynchronise until they do",
				"servers", waiting)
			return nil
		}
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d servers do not answer: %w", waiting, len(servers), err)
		}
	}
}

// discover opens links to the listed servers and closes those to dead ones.
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
		// A server that answers is alive, even if the table does not list it.
		if !listed[id] && now.Sub(p.lastSeen()) >= m.cfg.DeadAfter {
			p.stop()
			delete(m.peers, id)
			m.sender.Drop(id)
		}
	}
	return servers, nil
}

// peer returns the link to a server, and opens it if there is none. It returns nil for
// this process, for processes without an address, for servers of other generations, and
// when the mesh is closed.
func (m *Mesh) peer(s routing.Server) *peer {
	if s.ID == m.cfg.Process || s.Addr == "" || s.Generation != m.cfg.Generation {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[s.ID]; p != nil || m.departed[s.ID] {
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

// maxDeparted bounds the departed servers that are remembered; a forgotten one costs
// failing calls for as long as the table still lists it.
const maxDeparted = 1 << 10

// onDeparted closes the link to a server that has closed its own: it has no streams.
func (m *Mesh) onDeparted(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bounded.Put(m.departed, id, true, maxDeparted)
	if p := m.peers[id]; p != nil {
		p.stop()
		delete(m.peers, id)
		m.sender.Drop(id)
	}
}

// Run maintains the links that Open has opened until ctx ends, then sends what is queued and
// closes them.
func (m *Mesh) Run(ctx context.Context, ready func()) error {
	ready()
	discover := time.NewTicker(m.cfg.Discover)
	defer discover.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.Close()
			return nil
		case <-discover.C:
			if _, err := m.discover(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Logger.Warn("link: servers cannot be listed, links stay as they are", "error", err)
			}
		case <-tick.C:
			if m.receiver != nil {
				m.receiver.Tick(m.cfg.Clock())
			}
		}
	}
}

// Close sends what is queued and closes all links, within seconds.
func (m *Mesh) Close() {
	m.finish()
	m.routing.Wait()
	m.mu.Lock() // no link is opened from here on
	m.end()
	m.mu.Unlock()
	m.running.Wait()
	m.client.CloseIdleConnections()
	m.carrier.CloseIdleConnections()
}

// Deliver sends a change that was just committed to the other servers that it concerns.
// It never waits; it drops the change if the queue is full, and the durable path repairs
// it.
func (m *Mesh) Deliver(d delivery.Delivery) {
	select {
	case m.worker(d.ChatID) <- job{delivery: d}:
	default:
		m.counters.dropped.Add(1)
	}
}

// Receipt sends a user's own state in a chat to the user's other servers. It never
// waits. Nothing repairs receipts: if the queue is full, the streams of all servers
// resynchronise.
func (m *Mesh) Receipt(user, chatID string, state *chatv1.MemberState) {
	select {
	case m.worker(chatID) <- job{receipt: &linkseq.Receipt{UserID: user, ChatID: chatID, State: state}}:
	default:
		m.bumpEpochs()
	}
}

// Repair sends a change to all servers that it concerns, and returns once it is on its
// links: from then on the other end detects a loss. If the servers cannot be looked up,
// Repair drops the change and all links start a new epoch, so that no stream misses it
// unnoticed. Errors are those of reading the members; the caller must retry.
func (m *Mesh) Repair(ctx context.Context, d delivery.Delivery) error {
	if d.Generation != m.cfg.Generation {
		return nil // of another generation of the store: every hub would drop it
	}
	members, err := m.cfg.Recipients.Members(ctx, d.ChatID, d.MembershipVersion)
	if err != nil {
		return err
	}
	return m.repair(ctx, d, members)
}

// bumpEpochs starts a new epoch on all links: every server detects a gap.
func (m *Mesh) bumpEpochs() {
	m.counters.epochBumps.Add(1)
	m.sender.BumpEpoch()
}
