package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/pace"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/identitymodule"
	"github.com/parley-chat/parley/server/internal/rest"
	"github.com/parley-chat/parley/server/internal/serviceapi"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// program is what the server is made of. Parts of only one mode, the durable path or the
// links to other processes, add themselves to the lists.
type program struct {
	cfg      Config
	backend  *backend.Backend
	key      *auth.Key
	gate     *auth.Gate
	identity *identitymodule.Module
	chats    *chat.Service
	hub      *delivery.Hub
	process  string
	log      *slog.Logger
	api      *api.API
	rest     http.Handler
	topics   *topicrpc.Module
	metrics  *telemetry.Metrics
	counts   *telemetry.ChatMetrics
	sends    pace.Window // how long they take

	forward   func(context.Context, chat.Send) (chat.Sent, bool) // to other servers
	remote    func(context.Context, string) (connect.HTTPClient, string, error)
	onCommit  []func(chat.Commit, delivery.Delivery)
	onReceipt []func(table.UserChat, *chatv1.MemberState)
	services  []lifecycle.Service // in the order of their start
	closers   []func()
	addresses []any  // attributes of the log's line that the server is up
	registry  string // address of the schema registry
	limits    identitymodule.Limits
	// certificate is the public listener's; nil for no TLS.
	certificate *certificate.Certificate
	recorded    func(stream string) // of search events; nil: this process does not publish them
	searchFull  func() bool         // whether the event log has no room for them; nil: it is not in this process
}

// remoteTurns is the number of lists of chats that are worked on at once where the
// store is far away: they wait for it more than they compute.
const remoteTurns = 32

// build constructs everything, in the order of its dependencies.
func build(ctx context.Context, cfg Config, backend *backend.Backend, log *slog.Logger) (_ *program, err error) {
	p := &program{cfg: cfg, backend: backend, log: log, metrics: telemetry.NewMetrics(), process: chat.NewID("srv_")}
	p.counts = p.metrics.Chats()
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := p.openCertificates(); err != nil {
		return nil, err
	}
	if p.key, err = cfg.loadKey(hasUsers(ctx, backend.Store)); err != nil {
		return nil, err
	}
	stamps := timestamp.New(backend.Store, p.cfg.clocks.Wall)
	vc := view.Config{Store: backend.Store, History: backend.History, Clock: p.cfg.clocks.Wall, Stamps: stamps,
		TokenKey: p.key.Derive("sync tokens", view.KeySize), NoReadReceipts: !cfg.ReadReceipts}
	if cfg.distributed() {
		vc.Turns = remoteTurns
	}
	reader := view.New(vc)
	if err := p.buildChats(ctx, reader, stamps); err != nil {
		return nil, err
	}
	if err := p.buildTopics(ctx); err != nil {
		return nil, err
	}
	if err := p.buildLimits(reader); err != nil {
		return nil, err
	}
	if err := p.buildIdentity(); err != nil {
		return nil, err
	}
	ac := api.Config{Chat: p.chats, View: reader, Hub: p.hub, Store: backend.Store, Logger: log, Enter: authapi.Enter,
		Observe: p.observe, First: p.metrics.First, Permit: serviceapi.Permit, Admit: p.limits.Admit,
		More: append(append(p.topics.OfUsers(), p.buildSearch()), p.identity.OfUsers()...)}
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
		// Where the disk is full, their first call writes them once there is room.
		if err := p.chats.EnsureUser(ctx, user); err != nil && !errors.Is(err, store.ErrFull) {
			return nil, fmt.Errorf("write demo user: %w", err)
		}
	}
	return p, nil
}

// buildTopics makes durable topics, or services that answer that this mode has none.
func (p *program) buildTopics(ctx context.Context) (err error) {
	p.topics, err = topicrpc.NewModule(ctx, topicrpc.ModuleConfig{Backend: p.backend, Clock: p.cfg.clocks.Wall,
		Logger:  p.log,
		Metrics: p.metrics, Creators: p.cfg.TopicCreators, Jobs: p.cfg.TopicJobs, MaxBytes: int64(p.cfg.TopicMaxBytes),
		Push:    egress.Config{Allow: p.cfg.pushAllow, Loopback: p.cfg.developing()},
		Process: p.process, Slots: p.cfg.TopicSlots,
		Replication: p.cfg.Kafka.Replication,
		Revoked:     func(id topicrpc.Identity) bool { return p.gate.Refuses(id.Token) }, // made by buildIdentity
		Refused:     func(ctx context.Context, user string) (bool, error) { return p.identity.Refuses(ctx, user) },
		Remote: func(ctx context.Context, process string) (connect.HTTPClient, string, error) {
			return p.remote(ctx, process) // connect has made the links before anything is called
		}})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, p.topics.Close)
	if !p.cfg.distributed() { // there, connect adds them behind the links
		p.services = append(p.services, p.topics.Services()...)
	}
	return nil
}

// buildChats makes the service and the hub. The hub needs the service for watermarks, and
// the service the hub for its commits; neither calls the other before both exist.
func (p *program) buildChats(ctx context.Context, reader *view.Reader, stamps *timestamp.Clock) (err error) {
	p.services = append(p.services, lifecycle.Service{Name: "clock", Run: stamps.Run})
	p.chats, err = chat.New(ctx, chat.Config{
		Store: p.backend.Store, Clock: p.cfg.clocks.Wall, Stamps: stamps, Generation: p.backend.Generation,
		Producer: p.process,
		Shared:   p.cfg.distributed(), Meter: meter(p.counts), Chats: p.cfg.MaxChatsPerUser,
		Members: p.cfg.MaxMembersPerGroup, NoReadReceipts: !p.cfg.ReadReceipts, Forward: p.forwards(),
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
		History: p.backend.History, Process: p.process, Source: reader, Durable: p.backend.Store.Durable,
		Clock: p.cfg.clocks.Wall, NewID: chat.NewID, Delivered: p.chats.Delivered, MaxStreams: p.cfg.MaxStreamsPerUser,
		Revoked: func(of auth.Principal) bool { return p.gate.Refuses(of) }, // made by buildIdentity
		Logger:  p.log,
	})
	return err
}

// forwards is how messages of contended chats get to another server, nil without others.
// connect makes the links that it uses, before anything is sent.
func (p *program) forwards() func(context.Context, chat.Send) (chat.Sent, bool) {
	if !p.cfg.distributed() {
		return nil
	}
	return func(ctx context.Context, m chat.Send) (chat.Sent, bool) { return p.forward(ctx, m) }
}

// buildEntrance makes what lets requests in, with tokens and as REST.
func (p *program) buildEntrance() (err error) {
	p.rest, err = rest.New(rest.Config{
		Handlers: p.api.Handlers(), Codec: api.RESTCodec, Gate: p.gate.Wrap, Services: p.api.Names(),
		Tokenless: authapi.Tokenless, LimitTokenless: p.identity.Tokenless.Wrap,
		Observe: p.metrics.Request, Redeem: p.identity.Redeem,
		MaxBody: map[string]int64{topicrpc.PublishProcedure: topicrpc.MaxPublishRequest,
			api.BatchProcedure: api.MaxAnalyticsBatch},
		Streams: []rest.Stream{
			{Path: api.EventsPath, Procedure: api.EventsProcedure, Codec: api.EventsCodec, Request: api.EventsRequest},
			{Path: topicrpc.EventsPath, Procedure: topicrpc.ConsumeProcedure, Codec: api.EventsCodec,
				Request: topicrpc.EventsRequest},
		},
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
// words: a caller without a token must not be able to create metrics or fill the log, which
// counts repetitions of a warning after the first few.
func (p *program) refuse(w http.ResponseWriter, r *http.Request, err error) {
	reason := auth.Reason(err)
	p.metrics.Refused(reason)
	if reason != "unavailable" { // which the API logs
		p.log.Warn("a request was not authenticated", "reason", reason, "from", r.RemoteAddr)
	}
	p.api.Refuse(w, r, err)
}
