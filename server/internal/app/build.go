package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/edge"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/rest"
	"github.com/parley-chat/parley/server/lifecycle"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/telemetry"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/server/wait"
)

// program is what the server is made of. What only one mode has, the durable path or the
// links to other processes, adds itself to the lists.
type program struct {
	cfg     Config
	backend *backend.Backend
	key     *auth.Key
	gate    *auth.Gate
	chats   *chat.Service
	hub     *delivery.Hub
	process string
	log     *slog.Logger
	api     *api.API
	rest    http.Handler
	metrics *telemetry.Metrics
	counts  *telemetry.Lifecycle

	onCommit  []func(chat.Commit, delivery.Delivery)
	onReceipt []func(table.UserChat, *chatv1.MemberState)
	services  []lifecycle.Service // in the order of their start
	closers   []func()
	addresses []any  // attributes of the log's line that the server is up
	registry  string // address of the schema registry
}

// remoteTurns is the number of lists of chats that are worked on at once where the
// store is far away: they wait for it more than they compute.
const remoteTurns = 32

// build constructs everything, in the order of its dependencies.
func build(ctx context.Context, cfg Config, backend *backend.Backend, log *slog.Logger) (_ *program, err error) {
	p := &program{cfg: cfg, backend: backend, log: log, metrics: telemetry.NewMetrics(), process: chat.NewID("srv_")}
	p.counts = p.metrics.Lifecycle()
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.key, err = cfg.loadKey(hasUsers(ctx, backend.Store)); err != nil {
		return nil, err
	}
	stamps := timestamp.New(backend.Store, clocks.Wall)
	vc := view.Config{Store: backend.Store, Generation: backend.Generation, Clock: clocks.Wall, Stamps: stamps, TokenKey: p.key.Derive("sync tokens", view.KeySize)}
	if cfg.distributed() {
		vc.Turns = remoteTurns
	}
	reader := view.New(vc)
	if err := p.buildChats(ctx, reader, stamps); err != nil {
		return nil, err
	}
	ac := api.Config{Chat: p.chats, View: reader, Hub: p.hub, Store: backend.Store, Logger: log, Observe: p.metrics.Request}
	if cfg.distributed() { // there, workers are processes of their own
		peers, err := p.connect(ctx, reader)
		if err != nil {
			return nil, err
		}
		ac.Route, ac.PeerStreams = peers.route, peers
	} else if err := p.buildPipeline(ctx); err != nil {
		return nil, err
	}
	if p.api, err = api.New(ac); err != nil {
		return nil, err
	}
	if err := p.buildEntrance(); err != nil {
		return nil, err
	}
	p.measure()
	for _, user := range p.demoUsers() {
		if err := p.chats.EnsureUser(ctx, user); err != nil {
			return nil, fmt.Errorf("write demo user: %w", err)
		}
	}
	return p, nil
}

// buildChats makes the service and the hub. The hub needs the service for watermarks, and
// the service the hub for its commits; neither calls the other before both exist.
func (p *program) buildChats(ctx context.Context, reader *view.Reader, stamps *timestamp.Clock) (err error) {
	p.services = append(p.services, lifecycle.Service{Name: "clock", Run: func(ctx context.Context, ready func()) error {
		stamps.Raise(ctx)
		ready()
		for wait.For(ctx, timestamp.RaisePause) == nil {
			stamps.Raise(ctx)
		}
		return nil
	}})
	p.chats, err = chat.New(ctx, chat.Config{
		Store: p.backend.Store, Clock: clocks.Wall, Stamps: stamps, Generation: p.backend.Generation, Producer: p.process,
		Shared: p.cfg.distributed(), Meter: meter(p.counts), Chats: p.cfg.MaxChatsPerUser,
		Committed: func(c chat.Commit) {
			d := delivery.Of(c.Events)
			d.Payloads = c.Payloads
			p.hub.Deliver(d)
			for _, f := range p.onCommit {
				f(c, d)
			}
		},
		Receipt: func(row table.UserChat, head table.Head) {
			state := reader.State(head, row)
			p.hub.Receipt(row.UserID, row.ChatID, state)
			for _, f := range p.onReceipt {
				f(row, state)
			}
		},
	})
	if err != nil {
		return err
	}
	p.hub, err = delivery.New(delivery.Config{
		Generation: p.backend.Generation, Process: p.process, Source: reader, Durable: p.backend.Store.Durable,
		Clock: clocks.Wall, NewID: chat.NewID, Delivered: p.chats.Delivered,
		Revoked: func(session string) bool { return p.gate.Revoked(session) }, // made by buildEntrance
	})
	return err
}

// buildEntrance makes what lets requests in, with tokens and as REST.
func (p *program) buildEntrance() (err error) {
	p.gate, err = auth.NewGate(auth.Config{
		Key: p.key, Clock: clocks.Wall, EnsureUser: p.chats.EnsureUser, Refuse: p.refuse, OnRevoke: p.hub.Revoke, Admitted: edge.Trust,
	})
	if err != nil {
		return err
	}
	p.rest, err = rest.New(rest.Config{
		Handlers: p.api.Handlers(), Codec: api.RESTCodec, Gate: p.gate.Wrap, Services: p.api.Names(), Observe: p.metrics.Request,
		Stream: rest.Stream{Procedure: api.EventsProcedure, Codec: api.EventsCodec},
	})
	return err
}

// close closes what build opened, in reverse order.
func (p *program) close() {
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	p.closers = nil
}

// refuse counts, logs and answers a request that the gate stopped. The reason is one of few
// words: whoever has no token must not be able to make metrics, nor to fill the log, in
// which the same warning is written a few times and then counted.
func (p *program) refuse(w http.ResponseWriter, r *http.Request, err error) {
	reason := auth.Reason(err)
	p.metrics.Refused(reason)
	if reason != "unavailable" { // which the API logs
		p.log.Warn("a request was not authenticated", "reason", reason, "from", r.RemoteAddr)
	}
	p.api.Refuse(w, r, err)
}
