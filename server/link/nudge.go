package link

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/routing"
)

const (
	nudgeQueue = 4096
	nudgeBatch = 128
	nudgeTime  = time.Second
)

// Nudger notifies relays in other processes of commits. A relay finds what it drops with
// its next sweep.
type Nudger struct {
	to      routing.Nudges
	log     *slog.Logger
	queue   chan chat.Commit
	dropped atomic.Int64
}

// NewNudger makes a Nudger that sends nothing until Run is called.
func NewNudger(to routing.Nudges, log *slog.Logger) *Nudger {
	return &Nudger{to: to, log: log, queue: make(chan chat.Commit, nudgeQueue)}
}

// Dropped is the number of nudges dropped.
func (n *Nudger) Dropped() int64 { return n.dropped.Load() }

// Nudge notifies the relay of a commit. It never waits.
func (n *Nudger) Nudge(c chat.Commit) {
	select {
	case n.queue <- c:
	default:
		n.dropped.Add(1)
	}
}

// Run sends nudges until ctx ends.
func (n *Nudger) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		var list []routing.Nudge
		select {
		case <-ctx.Done():
			return nil
		case c := <-n.queue:
			list = n.add(list, c)
		}
		for len(list) < nudgeBatch {
			select {
			case c := <-n.queue:
				list = n.add(list, c)
				continue
			default:
			}
			break
		}
		n.send(ctx, list)
	}
}

func (n *Nudger) add(list []routing.Nudge, c chat.Commit) []routing.Nudge {
	b, err := EncodeCommit(c)
	if err != nil || len(b) > routing.MaxNudge {
		n.dropped.Add(1)
		return list
	}
	return append(list, routing.Nudge{Shard: event.Shard(c.ChatID), Payload: b})
}

func (n *Nudger) send(ctx context.Context, list []routing.Nudge) {
	ctx, cancel := context.WithTimeout(ctx, nudgeTime)
	defer cancel()
	if err := n.to.Nudge(ctx, list); err != nil {
		if before := n.dropped.Add(int64(len(list))) - int64(len(list)); before%1000 == 0 {
			n.log.Warn("link: relays are not notified of commits; their sweeps find them", "error", err)
		}
	}
}
