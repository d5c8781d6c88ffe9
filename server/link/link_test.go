package link

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
	"github.com/parley-chat/parley/server/store"
	storetable "github.com/parley-chat/parley/server/store/table"
)

func TestMain(m *testing.M) {
	testkit.Waiting()
	goleak.VerifyTestMain(m)
}

var secret = []byte("a secret of more than 16 bytes")

func TestOncePerServer(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u", "v", "w", "away"}
	one, own := n.server("one", []string{"u", "v"}, nil)
	two, _ := n.server("two", []string{"w"}, nil)
	three, _ := n.server("three", []string{"x"}, nil)
	m := n.mesh(n.config("sender", nil))
	for v := int64(1); v <= 300; v++ {
		m.Deliver(sent("c", v))
	}
	want := make([]int64, 300)
	for i := range want {
		want[i] = int64(i) + 1
	}
	for _, h := range []*fakeHub{one, two} {
		h.until(t, "all changes, once and in order", func(h *fakeHub) bool { return slices.Equal(h.versions["c"], want) })
	}
	three.mu.Lock()
	defer three.mu.Unlock()
	if len(three.versions) > 0 || one.dirty+two.dirty+three.dirty > 0 || one.contents[0] != "text 1" {
		t.Errorf("three got %v; %d marks", three.versions, one.dirty+two.dirty+three.dirty)
	}
	own.Deliver(sent("c", 301)) // its own hub knows already
	two.until(t, "a change from a server", func(h *fakeHub) bool { return len(h.versions["c"]) == 301 })
	one.mu.Lock()
	defer one.mu.Unlock()
	if !slices.Equal(one.versions["c"], want) {
		t.Errorf("a process sent to itself, or a change came twice: %v", runs(one.versions))
	}
}

func TestTargetsAndReceipts(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	hub, _ := n.server("one", []string{"removed"}, nil)
	m := n.mesh(n.config("sender", nil))
	d := sent("c", 1)
	d.Targets = []string{"removed"} // no member any more
	m.Deliver(d)
	m.Receipt("removed", "c", &chatv1.MemberState{ReadSequence: 7})
	hub.until(t, "the removal and the receipt", func(h *fakeHub) bool {
		return len(h.versions["c"]) == 1 && slices.Equal(h.receipts, []string{"removed c 7"})
	})
}

// K-119: what cannot be routed is left out, and everybody synchronises.
func TestSkippedRepairIsNoticed(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	hub, _ := n.server("one", []string{"u"}, nil)
	m := n.mesh(n.config("sender", nil))
	n.table.Fail(routing.ErrUnavailable)
	testkit.Must(t, m.Repair(t.Context(), sent("c", 1)))
	hub.until(t, "a mark", func(h *fakeHub) bool { return h.dirty == 1 })
	m.Deliver(sent("c", 2)) // the durable path repairs it: no mark
	m.Receipt("u", "c", &chatv1.MemberState{})
	hub.until(t, "another mark", func(h *fakeHub) bool { return h.dirty == 2 })
	n.table.Fail(nil)
	testkit.Must(t, m.Repair(t.Context(), sent("c", 3)))
	hub.until(t, "a repair", func(h *fakeHub) bool { return slices.Equal(h.versions["c"], []int64{3}) })
	if s := m.Stats(); s.EpochBumps != 2 || s.Unrouted != 1 {
		t.Errorf("%+v", s)
	}
	n.fail = errors.New("store")
	d := sent("other", 1)
	if err := m.Repair(t.Context(), d); !errors.Is(err, n.fail) { // K-124: again later
		t.Errorf("the store is away: %v", err)
	}
}

// Cut connections, slow ones and ones that lead nowhere: nothing is missed unnoticed.
func TestLinksCut(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	var way *proxy
	hub, _ := n.server("one", []string{"u"}, func(addr string) string { way = newProxy(t, addr); return way.addr })
	m := n.mesh(n.config("sender", nil))
	const total = 2000
	for v := int64(1); v <= total; v++ {
		testkit.Must(t, m.Repair(t.Context(), sent("c", v)))
		switch v % 400 {
		case 100:
			way.cut()
		case 200:
			way.hold(true)
		case 300:
			way.hold(false)
		}
	}
	// The last one to arrive reports all the others.
	hub.until(t, "the last change, or a mark after it was lost", func(h *fakeHub) bool {
		seen := map[int64]bool{}
		for _, v := range h.versions["c"] {
			seen[v] = true
		}
		return len(seen) == total || (h.dirty > 0 && m.idle())
	})
	hub.mu.Lock()
	defer hub.mu.Unlock()
	seen := map[int64]bool{}
	for _, v := range hub.versions["c"] {
		seen[v] = true
	}
	if len(seen) < total && hub.dirty == 0 {
		t.Errorf("%d of %d changes came, and nobody noticed", len(seen), total)
	}
	if s := m.Stats(); s.Failed == 0 {
		t.Errorf("nothing was cut: %+v", s)
	}
}

// idle reports whether nothing waits for a link.
func (m *Mesh) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.mu.Lock()
		n := len(p.queue)
		p.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// A queue that is full leaves live changes to the durable path and shows lost repairs as
// a gap.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	var way *proxy
	hub, _ := n.server("one", []string{"u"}, func(addr string) string { way = newProxy(t, addr); return way.addr })
	cfg := n.config("sender", nil)
	cfg.QueueItems = 10
	m := n.mesh(cfg)
	way.hold(true)
	for v := int64(1); v <= 500; v++ {
		m.Deliver(sent("c", v))
	}
	testkit.Eventually(t, "a change has no room in the queue", func() bool { return m.Stats().Dropped > 0 })
	hub.mu.Lock()
	if hub.dirty != 0 {
		t.Error("marked for live changes")
	}
	hub.mu.Unlock()
	for v := int64(501); v <= 600; v++ {
		testkit.Must(t, m.Repair(t.Context(), sent("c", v)))
	}
	way.hold(false)
	hub.until(t, "a mark", func(h *fakeHub) bool { return h.dirty > 0 })
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	cfg := n.config("sender", nil)
	cfg.DeadAfter = 200 * time.Millisecond
	dead := routing.Server{ID: "dead", Addr: "127.0.0.1:1", Generation: "g", Epoch: 1}
	m := n.mesh(cfg)
	testkit.Must(t, n.table.Claim(t.Context(), dead, time.Hour))
	_, err := n.table.Put(t.Context(), dead, []string{"u"}, time.Hour)
	testkit.Must(t, err)
	testkit.Must(t,
		n.table.Claim(t.Context(), routing.Server{ID: "foreign", Addr: "127.0.0.1:1", Generation: "other", Epoch: 1},
			time.Hour))
	m.Deliver(sent("c", 1))
	testkit.Eventually(t, "a send to the dead server has failed", func() bool { return m.Stats().Failed > 0 })
	// K-120: it does not answer; what is for it is skipped.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := m.Repair(ctx, sent("c", 2)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if got := m.Stats().Peers; got != 1 {
		t.Errorf("%d peers, the foreign one included?", got)
	}
	testkit.Must(t, n.table.Release(t.Context(), dead))
	testkit.Eventually(t, "a server without a lease is no peer", func() bool { return m.Stats().Peers == 0 })
}

func TestForwarding(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	hub, _ := n.server("one", nil, nil)
	_, m := n.server("two", nil, nil)
	ctx := t.Context()
	if err := m.Ack(ctx, "u", "one.str_1", 4); !errors.Is(err, delivery.ErrStreamGone) {
		t.Errorf("ack: %v", err)
	}
	testkit.Must(t, m.Extend(ctx, "u", "s", "one.str_1", time.Unix(5, 0)))
	if err := m.Extend(ctx, "thief", "s", "one.str_1", time.Unix(5, 0)); !errors.Is(err, delivery.ErrNotYours) {
		t.Errorf("extend: %v", err)
	}
	if err := m.Ack(ctx, "u", "nowhere.str_1", 4); !errors.Is(err, delivery.ErrStreamGone) {
		t.Errorf("no such server: %v", err)
	}
	if err := m.Ack(ctx, "u", "one."+strings.Repeat("x", 200), 4); err == nil {
		t.Error("an id beyond the limit")
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if want := []string{"u one.str_1", "u s one.str_1 5", "thief s one.str_1 5"}; !slices.Equal(hub.acks, want) {
		t.Errorf("%q, want %q", hub.acks, want)
	}
}

func TestCommitNudge(t *testing.T) {
	c := chat.Commit{
		ChatID: "chat_1", Head: storetable.Head{ChatID: "chat_1", Version: 9},
		Events: []event.Event{message("chat_1", 8, "a"), message("chat_1", 9, "b")},
		Outbox: store.Row{Key: store.Key{Table: store.Outbox, PK: storetable.ShardKey(event.Shard("chat_1")),
			SK: "chat_1#8"}},
	}
	b, err := EncodeCommit(c)
	testkit.Must(t, err)
	got, err := DecodeCommit("g", b)
	testkit.Must(t, err)
	if got.ChatID != c.ChatID || got.Head.Version != 9 || got.Outbox.Key != c.Outbox.Key || len(got.Events) != 2 ||
		!proto.Equal(got.Events[1], c.Events[1]) {
		t.Errorf("%+v", got)
	}
	if again, err := EncodeCommit(got); err != nil || !bytes.Equal(again, b) {
		t.Errorf("the commit that was decoded is encoded as %x, not %x (%v)", again, b, err)
	}
	// The bytes of a commit go as they are: nothing encodes its events again.
	stored := c
	for _, e := range c.Events {
		payload, err := event.Marshal(e)
		testkit.Must(t, err)
		// a field of a newer version
		stored.Payloads = append(stored.Payloads,
			protowire.AppendVarint(protowire.AppendTag(payload, 1000, protowire.VarintType), 1))
	}
	b2, err := EncodeCommit(stored)
	testkit.Must(t, err)
	wire := &linkv1.Commit{}
	testkit.Must(t, proto.Unmarshal(b2, wire))
	for i, e := range wire.GetEvents() {
		if !bytes.Equal(e.GetPayload(), stored.Payloads[i]) {
			t.Errorf("payload %x, stored is %x", e.GetPayload(), stored.Payloads[i])
		}
	}
	if got, err := DecodeCommit("g", b2); err != nil || len(wire.GetEvents()) != 2 || got.Payloads != nil {
		t.Errorf("payloads %x off the channel, %v", got.Payloads, err)
	}
	foreign := c
	foreign.Events = []event.Event{message("chat_2", 9, "x")}
	skewed := c
	skewed.Events = []event.Event{message("chat_1", 7, "x")}
	for name, c := range map[string]chat.Commit{"another chat's event": foreign, "another version": skewed,
		"nothing": {}} {
		b, err := EncodeCommit(c)
		testkit.Must(t, err)
		if _, err := DecodeCommit("g", b); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := DecodeCommit("g2", b); err == nil {
		t.Error("another generation's commit was taken")
	}
	if _, err := DecodeCommit("g", []byte("junk")); err == nil {
		t.Error("junk was taken")
	}
}

// BenchmarkRepair brings a hundred changes from one process to another.
func BenchmarkRepair(b *testing.B) {
	n := newNet(nil)
	n.members["c"] = []string{"u", "v"}
	hub := newFakeHub()
	srv, err := New(n.config("one", hub))
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, nil) }()
	defer func() { cancel(); <-done; srv.Close() }()
	s := routing.Server{ID: "one", Addr: l.Addr().String(), Generation: "g", Epoch: 1}
	if err := n.table.Claim(b.Context(), s, time.Hour); err != nil {
		b.Fatal(err)
	}
	if _, err := n.table.Put(b.Context(), s, []string{"u"}, time.Hour); err != nil {
		b.Fatal(err)
	}
	m, err := New(n.config("sender", nil))
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	version := int64(0)
	for b.Loop() {
		for range 100 {
			version++
			if err := m.Repair(b.Context(), sent("c", version)); err != nil {
				b.Fatal(err)
			}
		}
		for got := 0; got < int(version); {
			<-hub.changed
			hub.mu.Lock()
			got = len(hub.versions["c"])
			hub.mu.Unlock()
		}
	}
}

// Nudges reach a relay elsewhere; those that are too many or too large are left out, and
// the others come.
func TestNudger(t *testing.T) {
	table := routingtest.New(time.Now)
	heard := make(chan routing.Nudge, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		_ = table.Subscribe(ctx, []int{event.Shard("chat_1")}, func() { close(ready) }, func(n routing.Nudge) { heard <- n })
	})
	<-ready
	n := NewNudger(table, slog.New(slog.DiscardHandler))
	commit := func(text string) chat.Commit {
		return chat.Commit{
			ChatID: "chat_1", Head: storetable.Head{ChatID: "chat_1", Version: 1},
			Events: []event.Event{message("chat_1", 1, text)},
			Outbox: store.Row{Key: store.Key{Table: store.Outbox, PK: storetable.ShardKey(event.Shard("chat_1")),
				SK: "chat_1#1"}},
		}
	}
	n.Nudge(commit(strings.Repeat("x", 1<<20)))
	n.Nudge(commit("small"))
	running.Go(func() { _ = n.Run(ctx, func() {}) })
	got := <-heard
	if c, err := DecodeCommit("g", got.Payload); err != nil || got.Shard != event.Shard("chat_1") ||
		c.Events[0].(*eventv1.MessagePersisted).GetContent() != "small" {
		t.Errorf("%+v %v", c, err)
	}
	if n.Dropped() != 1 {
		t.Errorf("%d left out, want 1", n.Dropped())
	}
	cancel()
	running.Wait()
	for range nudgeQueue + 5 {
		n.Nudge(commit("nobody sends it"))
	}
	if n.Dropped() != 6 {
		t.Errorf("%d left out, want 6", n.Dropped())
	}
}
