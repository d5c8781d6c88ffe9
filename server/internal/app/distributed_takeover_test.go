//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
)

const (
	relaySlots     = 8  // by default
	takeoverChats  = 24 // at least
	takeoverPause  = 20 * time.Millisecond
	takeoverKills  = 1
	takeoverSample = 50 * time.Millisecond // of the offsets that groups have committed
)

// TestTakeover ends workers while people write: it kills one, so that the other must take its
// work over, has one end in good order, and kills one that has a name and restarts it. It reports
// the longest wait of an event in the outbox and of a record for a group.
func TestTakeover(t *testing.T) {
	in := newInstallation(t)
	ctx, progress := untilStuck(t, 3*time.Minute)
	w := newWaits(ctx, t, in)
	during := func(end func(), again bool, m *member) (outbox, consumers time.Duration) {
		w.settled(ctx)
		w.drained(ctx)
		w.reset()
		end()
		if again {
			in.start(m)
		}
		if !w.more(ctx, 100) {
			t.Fatal("nothing was sent meanwhile")
		}
		w.drained(ctx)
		outbox, consumers = w.longest()
		if !again {
			in.start(m)
		}
		progress()
		return outbox, consumers
	}
	var outbox, consumers time.Duration
	for round := range takeoverKills {
		m := in.workers[round%2]
		o, c := during(func() { m.kill() }, false, m)
		t.Logf("kill %d: outbox %.1f s, consumers %.1f s", round, o.Seconds(), c.Seconds())
		outbox, consumers = max(outbox, o), max(consumers, c)
	}
	t.Logf("takeover: outbox %.1f s, consumers %.1f s", outbox.Seconds(), consumers.Seconds())

	m := in.workers[0]
	m.args = slices.Concat(in.flags, []string{"--worker-name", "first", "run"}, in.jobs)
	outbox, consumers = during(func() { m.leave() }, false, m)
	t.Logf("takeover: outbox %.1f s, consumers %.1f s after a worker that ended in good order",
		outbox.Seconds(), consumers.Seconds())
	outbox, consumers = during(func() { m.kill() }, true, m)
	t.Logf("takeover: outbox %.1f s, consumers %.1f s after a worker that was killed and restarted under its name",
		outbox.Seconds(), consumers.Seconds())
}

// waits measures how long events wait for a relay, and records for each group.
type waits struct {
	t      *testing.T
	in     *installation
	reader *kafka.Client
	admin  *kadm.Client
	groups []string

	mu        sync.Mutex
	acked     map[string]time.Time // by message; until it is read from Kafka
	early     map[string]time.Time // by message: read from Kafka before the acknowledgement
	sent      int
	unread    map[string]map[int32][]arrival // by group and partition: not committed yet
	outbox    time.Duration                  // longest wait since reset
	consumers time.Duration
}

// arrival is a record and when it could be read.
type arrival struct {
	offset int64
	at     time.Time
}

// newWaits starts a writer and a reader.
func newWaits(ctx context.Context, t *testing.T, in *installation) *waits {
	t.Helper()
	reader, err := kafka.NewReader(in.kafka, kafka.MessagesPersisted)
	testkit.Must(t, err)
	w := &waits{t: t, in: in, reader: reader, admin: kadm.NewClient(reader), acked: map[string]time.Time{},
		early: map[string]time.Time{}, unread: map[string]map[int32][]arrival{},
		groups: []string{kafka.FanoutGroup, kafka.ProjectorGroup}}
	for _, group := range w.groups {
		w.unread[group] = map[int32][]arrival{}
	}
	alice, bob := in.user("alice", 0), in.user("bob", 1)
	slots := map[int]bool{}
	var chats []string
	for i := 0; i < takeoverChats || len(slots) < relaySlots; i++ {
		res, err := call(ctx, alice.chats.CreateChat, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i), MemberIds: []string{bob.name}})
		testkit.Must(t, err)
		id := res.GetOverview().GetChat().GetChatId()
		slots[event.Shard(id)%relaySlots] = true
		chats = append(chats, id)
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.write(ctx, alice, chats) })
	running.Go(func() { w.read(ctx) })
	running.Go(func() { w.sample(ctx) })
	t.Cleanup(func() { stop(); running.Wait(); reader.Close() })
	return w
}

// write sends messages, one after the other, to all chats in turn.
func (w *waits) write(ctx context.Context, u *user, chats []string) {
	for i := 0; ctx.Err() == nil; i++ {
		res, err := call(ctx, u.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: chats[i%len(chats)],
			ClientMessageId: uuid.NewString(), Content: fmt.Sprint(i)})
		if err != nil {
			if ctx.Err() == nil {
				w.t.Error(err)
			}
			return
		}
		now, id := time.Now(), res.GetMessageId()
		w.mu.Lock()
		w.sent++
		if _, ok := w.early[id]; ok {
			delete(w.early, id)
		} else {
			w.acked[id] = now
		}
		w.mu.Unlock()
		_ = wait.For(ctx, takeoverPause)
	}
}

// read takes the time at which each message can be read from Kafka.
func (w *waits) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := w.reader.PollFetches(ctx)
		now := time.Now()
		w.mu.Lock()
		fetches.EachRecord(func(r *kafka.Record) {
			var m eventv1.MessagePersisted
			if len(r.Value) < 6 || proto.Unmarshal(r.Value[6:], &m) != nil {
				return // of another test
			}
			if at, ok := w.acked[m.GetMessageId()]; ok {
				w.outbox = max(w.outbox, now.Sub(at))
				delete(w.acked, m.GetMessageId())
			} else {
				w.early[m.GetMessageId()] = now // or a duplicate
			}
			for _, parts := range w.unread {
				parts[r.Partition] = append(parts[r.Partition], arrival{r.Offset, now})
			}
		})
		w.mu.Unlock()
	}
}

// sample takes the time at which groups have committed records.
func (w *waits) sample(ctx context.Context) {
	for wait.For(ctx, takeoverSample) == nil {
		for _, group := range w.groups {
			done, err := w.admin.FetchOffsets(ctx, group)
			now := time.Now()
			if err != nil || done.Error() != nil {
				continue // asked again
			}
			w.mu.Lock()
			for part, list := range w.unread[group] {
				o, _ := done.Lookup(kafka.MessagesPersisted, part)
				for len(list) > 0 && list[0].offset < o.At {
					w.consumers = max(w.consumers, now.Sub(list[0].at))
					list = list[1:]
				}
				w.unread[group][part] = list
			}
			w.mu.Unlock()
		}
	}
}

// settled waits until both workers have half of the slots and are members of both groups.
func (w *waits) settled(ctx context.Context) {
	w.t.Helper()
	until(ctx, w.t, "both workers have half of the work", func() bool {
		for _, m := range w.in.workers {
			if n, err := m.metric(ctx, telemetry.RelaySlots); err != nil || n != relaySlots/2 {
				return false
			}
		}
		groups, err := w.admin.DescribeGroups(ctx, w.groups...)
		if err != nil {
			return false
		}
		for _, g := range groups {
			if g.State != "Stable" || len(g.Members) != len(w.in.workers) {
				return false
			}
			for _, m := range g.Members {
				if c, ok := m.Assigned.AsConsumer(); !ok || !strings.Contains(fmt.Sprint(c.Topics), kafka.MessagesPersisted) {
					return false
				}
			}
		}
		return true
	})
}

// more waits until n more messages have been acknowledged.
func (w *waits) more(ctx context.Context, n int) bool {
	count := func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.sent }
	for want := count() + n; count() < want; {
		if wait.For(ctx, takeoverSample) != nil {
			return false
		}
	}
	return true
}

// drained waits until what was acknowledged or published before the call has been published and
// committed by both groups.
func (w *waits) drained(ctx context.Context) {
	w.t.Helper()
	begun := time.Now()
	var left string
	until := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for id, at := range w.acked {
			if at.Before(begun) {
				left = "message " + id + " is not published"
				return false
			}
		}
		for group, parts := range w.unread {
			for part, list := range parts {
				if len(list) > 0 && list[0].at.Before(begun) {
					left = fmt.Sprintf("partition %d is not consumed by %s", part, group)
					return false
				}
			}
		}
		return true
	}
	for !until() {
		if wait.For(ctx, takeoverSample) != nil {
			w.t.Fatalf("after %v: %s", time.Since(begun), left)
		}
	}
}

func (w *waits) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox, w.consumers = 0, 0
}

// longest returns the longest waits that ended since the last reset.
func (w *waits) longest() (outbox, consumers time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outbox, w.consumers
}
