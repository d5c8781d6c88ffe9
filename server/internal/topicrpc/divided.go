package topicrpc

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/topic"
)

// divide makes the topics of one server of many.
func (p *Module) divide() (err error) {
	if p.cfg.Remote == nil || p.cfg.Process == "" {
		return errors.New("topicrpc: one of many servers needs an id, and a way to the others")
	}
	p.slots, err = topic.NewSlotManager(topic.SlotManagerConfig{
		Store: p.cfg.Backend.Store, Process: p.cfg.Process, Slots: p.cfg.Slots, Open: p.open, Logger: p.cfg.Logger,
	})
	if err != nil {
		return err
	}
	p.measure()
	p.measureSlots()
	p.measureLogs()
	return nil
}

// run serves slots until ctx ends, unless Kafka has the topics of another installation. While
// Kafka is unavailable this cannot be checked; each slot checks again when it is opened.
func (p *Module) run(ctx context.Context, ready func()) (err error) {
	if p.installation, err = topic.Installation(ctx, p.cfg.Backend.Store); err != nil {
		return err
	}
	check, cancel := context.WithTimeout(ctx, checkTime)
	err = topicstore.Check(check, p.log(topic.Slot{Of: p.slots.Slots()}))
	cancel()
	if errors.Is(err, topicstore.ErrForeign) {
		return err
	}
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.Warn("topics: cannot look whose topics Kafka has", "error", err)
	}
	return p.slots.Run(ctx, ready)
}

// checkTime is how long a start may wait for Kafka.
const checkTime = 3 * time.Second

// log is how a slot's log is configured.
func (p *Module) log(slot topic.Slot) topicstore.Config {
	b := p.cfg.Backend
	return topicstore.Config{
		Addr: b.KafkaAddr(), Options: b.KafkaOptions(), Slot: slot.Number, Slots: slot.Of, Installation: p.installation,
		Replication: int16(p.cfg.Replication), Clock: p.cfg.Clock, Logger: p.cfg.Logger.With("slot", slot.Number),
		Counters: &p.logs,
	}
}

// open takes a slot over: its log first, so that an earlier owner can append nothing, then its
// rows.
func (p *Module) open(ctx context.Context, slot topic.Slot) (*topic.Service, func(), error) {
	cfg := p.log(slot)
	log, err := topicstore.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	s, err := topic.New(ctx, topic.Config{
		Slot: slot, Store: p.cfg.Backend.Store, Log: log, Logger: cfg.Logger, Clock: p.cfg.Clock, Jobs: p.cfg.Jobs,
		Events: p.events, Resident: topic.ResidentBytes(memory.Total()) / int64(slot.Of),
		Audit: p.audit(audit.New(p.cfg.Backend.Store, p.cfg.Clock)), Sessions: p.sessions, KnownIDs: &p.knownIDs,
		MaxBytes: p.cfg.MaxBytes, Groups: p.groups, Push: p.push, Refused: p.cfg.Refused,
	})
	if err != nil {
		log.Close()
		return nil, nil, err
	}
	p.sums.begin(s)
	return s, func() { p.sums.end(s); log.Close() }, nil
}

// Carried serves the calls that other processes pass on over links: servers, to a slot of this
// one, and those that serve operators, to any server. It is nil if this one has no slots.
func (p *Module) Carried() (http.Handler, error) {
	if p.slots == nil {
		return nil, nil //nolint:nilnil // there is nothing to serve
	}
	here, err := p.carried(NewSlotInterceptor(p.slots), func(string, string, time.Duration) {}) // the first server counts
	if err != nil {
		return nil, err
	}
	anywhere, err := p.carried(p.route(visitor), p.cfg.Metrics.Request)
	if err != nil {
		return nil, err
	}
	return Admit(here, anywhere), nil
}

// visitor is the caller of a call that another process passes on.
func visitor(ctx context.Context) Identity {
	id, _ := ForwardedCaller(ctx) // there is one: the chain asks for it
	return id
}

func (p *Module) carried(
	route connect.Interceptor, observe func(procedure, code string, took time.Duration),
) (http.Handler, error) {
	deadLetters := NewDeadLetterServer(DeadLetterConfig{Route: route, Identify: visitor})
	handlers, err := p.serve(append(p.operated(visitor, route), deadLetters.Service()), observe,
		func(ctx context.Context) bool {
			_, ok := ForwardedCaller(ctx)
			return ok
		})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for path, h := range handlers {
		mux.Handle(path, h)
	}
	return mux, nil
}
