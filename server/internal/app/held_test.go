package app

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Held is a server in this process whose consumers, fanout and the projector, run only within
// Fold, and whose relay may not run at all. They fetch once a second, and the projector folds
// each chat of a fetch: the slower the machine is, the fewer events share a fold, and the more
// each event takes. Held separates this from what a request takes.
type Held struct {
	Addr      string
	Committed atomic.Int64 // events since its start

	consumers []lifecycle.Service
	folded    *foldedStore
}

// StartHeld starts a server until the test ends, with a relay or without.
func StartHeld(t *testing.T, relay bool, args ...string) *Held {
	t.Helper()
	cfg, says := parse(t, args, nil)
	if says != "" {
		t.Fatal(says)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.onLoopback = true
	log := telemetry.NewLogger(io.Discard, false)
	b, err := openBackend(cfg, io.Discard, log, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	h := &Held{Addr: listener.Addr().String(), folded: &foldedStore{Store: b.Store}}
	b.Store = h.folded
	p, err := build(t.Context(), cfg, b, log)
	if err != nil {
		t.Fatal(err)
	}
	p.onCommit = append(p.onCommit, func(c chat.Commit, _ delivery.Delivery) { h.Committed.Add(int64(len(c.Events))) })
	services, err := p.serviceOrder(t.Context(), listener)
	if err != nil {
		t.Fatal(err)
	}
	services = slices.DeleteFunc(services, func(s lifecycle.Service) bool {
		held := s.Name == "fanout" || s.Name == "projector"
		if held {
			h.consumers = append(h.consumers, s)
		}
		return held || s.Name == "relay" && !relay
	})
	if len(h.consumers) != 2 {
		t.Fatalf("%d services are consumers", len(h.consumers))
	}
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- lifecycle.Run(ctx, services, func() { close(started) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		p.close()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	<-started
	return h
}

// Fold runs the consumers until so many messages are folded since the start of the server.
func (h *Held) Fold(ctx context.Context, messages int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := h.folded.await(messages)
	var running sync.WaitGroup
	for _, s := range h.consumers {
		running.Go(func() { _ = s.Run(ctx, func() {}) }) // which logs failures and tries again
	}
	<-reached
	cancel()
	running.Wait()
}

// foldedStore counts the messages that the projections of chats' activity have.
type foldedStore struct {
	store.Store

	mu      sync.Mutex
	days    map[store.Key]int64 // messages of a chat and day
	sum     int64
	want    int64
	reached chan struct{}
}

func (s *foldedStore) await(messages int64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	reached := make(chan struct{})
	s.want, s.reached = messages, reached
	s.check()
	return reached
}

func (s *foldedStore) Transact(ctx context.Context, p store.Plan) error {
	err := s.Store.Transact(ctx, p)
	if err != nil || p.Writes[0].Key.Table != store.Projections {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.days == nil {
		s.days = map[store.Key]int64{}
	}
	for _, one := range p.Writes {
		if strings.HasPrefix(one.Key.SK, "day/") {
			now := table.ChatActivityFrom(one.Item).Messages
			s.sum += now - s.days[one.Key]
			s.days[one.Key] = now
		}
	}
	s.check()
	return nil
}

// check ends the wait if what is awaited is there. The caller holds the lock.
func (s *foldedStore) check() {
	if s.reached != nil && s.sum >= s.want {
		close(s.reached)
		s.reached = nil
	}
}
