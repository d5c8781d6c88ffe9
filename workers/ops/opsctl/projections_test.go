package opsctl_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// A rebuild that meets an event which cannot be read does not replace the live build. The command
// fails, and says which chats are incomplete and how to proceed. With --accept-gaps the build becomes
// live, and the command still names them.
func TestRebuildWithGaps(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	set := r.Projections()
	testkit.Must(t, set.Prepare(t.Context()))
	id := r.Chat(3)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = set.Run(ctx, func() {}) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	built := func() bool {
		out, _ := c.run(0, "projections list")
		return !strings.Contains(out, "none yet")
	}
	testkit.Eventually(t, "both are built", built)
	key := table.EventKey(id, 5) // its last message
	it, err := r.Store.Get(t.Context(), key, store.Strong)
	testkit.Must(t, err)
	broken, err := table.EventFrom(store.Row{Key: key, Item: it})
	testkit.Must(t, err)
	broken.Payload = []byte{0xff}
	testkit.Must(t, r.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: broken.Item()}}))

	_, errs := c.run(3, "projections rebuild --execute chat_activity")
	c.has(errs, "chat_activity: build 2 is not live, gaps: 1 ("+id+")", "build 1 stays live",
		"projections resume chat_activity --execute", "--accept-gaps", "projections cancel chat_activity --execute")
	out, _ := c.run(0, "projections list")
	c.has(out, "blocked, gaps: 1")
	out, _ = c.run(0, "activity", id)
	c.has(out, "3         1")
	c.run(2, "projections pause --execute --accept-gaps chat_activity")

	c.run(0, "projections cancel --execute chat_activity")
	out, _ = c.run(0, "projections rebuild --execute --accept-gaps chat_activity")
	c.has(out, "chat_activity: build 3 is live, with ", "gaps: 1 ("+id+")")
	_, errs = c.run(3, "projections rebuild --execute chat_activity")
	c.has(errs, "build 4 is not live", "build 3 stays live")
	out, _ = c.run(0, "projections resume --execute --accept-gaps chat_activity")
	c.has(out, "it resumes")
	testkit.Eventually(t, "build 4 is live", func() bool {
		out, _ := c.run(0, "projections list --json")
		return strings.Contains(out, `"liveBuild":"4"`) || strings.Contains(out, `"liveBuild": "4"`)
	})
}

// EV45, EV50: operators see the projections, make one again and follow it, and read what they
// say; what a redrive came to shows at once. Calls that change something are recorded.
func TestProjections(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	c := commands(t, r)
	set := r.Projections()
	testkit.Must(t, set.Prepare(t.Context()))
	out, _ := c.run(0, "projections list")
	c.has(out, "chat_activity", "none yet", "waits for a process", "system")
	_, errs := c.run(1, "activity chat_1")
	c.has(errs, "built for the first time")

	id := r.Chat(3)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = set.Run(ctx, func() {}) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	testkit.Eventually(t, "both are built", func() bool {
		out, _ := c.run(0, "projections list")
		return !strings.Contains(out, "none yet")
	})
	out, _ = c.run(0, "activity --senders", id)
	c.has(out, "DAY         MESSAGES  SENDERS", "3         1", "alice", "3")

	out, _ = c.run(0, "projections rebuild chat_activity")
	c.has(out, "nothing was changed")
	out, _ = c.run(0, "projections rebuild --execute chat_activity")
	c.has(out, "chat_activity: build 2 is live, with ")
	out, _ = c.run(0, "projections list")
	c.has(out, "ada")
	for _, verb := range []string{"pause", "resume", "cancel"} {
		_, errs := c.run(1, "projections "+verb+" --execute chat_activity")
		c.has(errs, "no rebuild of chat_activity is under way")
	}
	_, errs = c.run(1, "projections rebuild --execute nothing")
	c.has(errs, "no such projection")
	c.run(2, "projections rebuild")
	c.run(2, "projections pause")
	c.run(2, "notifications --status lost")
	_, errs = c.run(1, "activity --from 2026-02-30 "+id)
	c.has(errs, "is no day")

	letter := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	r.DeadLetter(opstest.Group, r.Event(chatB, 2), "permanent: worse")
	spans, err := lag.Spans(t.Context(), r.Kafka, kafka.DeadLetters)
	testkit.Must(t, err)
	testkit.Must(t, lag.Read(t.Context(), r.Kafka, spans, func(rec *kafka.Record) error {
		_, err := set.Handle(t.Context(), []*kafka.Record{rec})
		return err
	}))
	out, _ = c.run(0, "notifications --user alice --since 1h")
	c.has(out, opstest.Group, "open", "MessagePersisted", chatA, chatB, "permanent: worse")
	out, _ = c.run(0, "notifications --limit 1")
	c.has(out, "there may be more: --page-token ")
	r.Handle = func(context.Context, *kafka.Record) error { return nil }
	c.run(0, "deadletters redrive --execute", letter)
	out, _ = c.run(0, "notifications --chat "+chatA)
	c.has(out, "redriven")
	out, _ = c.run(0, "notifications --json --status open")
	if strings.Contains(out, chatA) || !strings.Contains(out, chatB) || strings.Contains(out, opstest.Secret) {
		t.Error(out)
	}
	out, _ = c.run(0, "audit")
	c.has(out, "ChangeRebuild", "REBUILD_ACTION_START")
}
