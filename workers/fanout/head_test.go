package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/consume"
)

// One chat has lost its head, and another's head is older than its events. Their events become
// dead letters. The other chats of the same partitions are repaired.
func TestChatWithoutHeadStopsNobody(t *testing.T) {
	t.Parallel()
	w := newFixture(t, kafkatest.InProcess(t), false)
	partition := func(id string) int { return event.Partition(id, int(kafka.Partitions(kafka.MessagesPersisted))) }
	missing, old := w.group(), w.group()
	var beside []string // in their partitions
	for len(beside) < 4 {
		if id := w.group(); partition(id) == partition(missing) || partition(id) == partition(old) {
			beside = append(beside, id)
		}
	}
	last := map[string]int64{}
	for _, id := range append([]string{missing, old}, beside...) {
		for i := range 3 {
			sent, err := w.chats.Send(w.ctx, chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i)})
			w.must(err)
			last[id] = sent.Version
		}
	}
	w.must(w.store.BatchWrite(w.ctx, []store.Write{
		{Op: store.OpDelete, Key: table.HeadKey(missing)},
		{Op: store.OpPut, Key: table.HeadKey(old), Item: table.Head{Version: 1, MembershipVersion: 1}.Item()},
	}))

	var mu sync.Mutex
	repaired, dead := map[string]int64{}, map[string]int{}
	reader := view.New(view.Config{Store: w.store, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	recipients := routing.NewRecipients("g", nil, reader.MemberIDs)
	ids, err := registry.New(w.store).Events(w.ctx)
	w.must(err)
	serde, err := event.NewSerde(ids, nil)
	w.must(err)
	cfg := w.config
	cfg.Group = w.broker.Name("head")
	cfg.Batch = Repairer(serde, func(ctx context.Context, d delivery.Delivery) error {
		if _, err := recipients.Members(ctx, d.ChatID, d.MembershipVersion); errors.Is(err, routing.ErrStale) {
			return fmt.Errorf("%w: %w", ErrHead, err)
		} else if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		repaired[d.ChatID] = max(repaired[d.ChatID], d.Version)
		return nil
	}, nil)
	cfg.WriteDeadLetter = func(_ context.Context, d consume.DeadLetter) error {
		mu.Lock()
		defer mu.Unlock()
		if d.Attempts != 3 {
			t.Errorf("a dead letter after %d attempts, expected 3", d.Attempts)
		}
		dead[string(d.Record.Key)]++
		return nil
	}
	e, err := consume.New(cfg)
	w.must(err)
	ctx, stop := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, func() {}) }()
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range beside {
			if repaired[id] != last[id] {
				return false
			}
		}
		return int64(dead[missing]) == last[missing] && dead[old] > 0
	}
	testkit.Eventually(t, "the repairs of the healthy chats, and dead letters of the other two", all)
	stop()
	<-done
	if len(dead) != 2 {
		t.Errorf("dead letters of %v, expected only of %s and %s", dead, missing, old)
	}
}
