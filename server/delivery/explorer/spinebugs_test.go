package explorer

import (
	"context"
	"slices"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/store/table"
)

// Mistakes of the durable path and of links; found like all others.
func init() {
	bugs = append(bugs,
		bug{name: "row deleted before its records are there", spine: true, lateProduce: true},
		bug{name: "row deleted before its records are on stable storage", spine: true, unstable: true},
		bug{name: "row of the store's log deleted before its records are there", spine: true, tune: inStore,
			lateProduce: true},
		bug{name: "row that the store's log does not delete", spine: true, tune: inStore, keepRow: true},
		bug{name: "nudge out of order, and the outbox shows no earlier row", spine: true, missedRow: true},
		bug{name: "sweep that skips rows", spine: true, noSweep: true},
		bug{name: "commit before Deliver", from: 73807, spine: true, tune: tuned(0, 0, (*spine).rebalance),
			commitFirst: true},
		bug{name: "rebalance that goes on at the end of a partition", from: 29789, spine: true,
			tune: tuned(0, 0, (*spine).rebalance), newest: true},
		bug{name: "dirty not set", from: 9254, spine: true, tune: tuned(50, 100), noDirty: true},
		bug{name: "skip without new epoch", from: 1854, spine: true, tune: tuned(0, 300), noSkip: true},
		bug{name: "silence not noticed", from: 77109, spine: true,
			tune: tuned(0, 0, (*spine).crashFanout, (*spine).crashFanout, (*spine).crashFanout), noTick: true},
		bug{name: "sender that was never heard of not missed", from: 241500, spine: true, tune: unmeeting, noList: true},
		bug{name: "lease not renewed but streams kept", from: 1033, spine: true, tune: tuned(0, 0, (*spine).lapse),
			keepLease: true},
		bug{name: "epoch jump ignored", from: 1854, spine: true, tune: tuned(0, 300),
			envelope: func(_ *world, _ *process, e *linkseq.Envelope) { e.Epoch = 1 }},
		bug{name: "number jump ignored", from: 27553, spine: true, tune: tuned(100, 0),
			envelope: func(_ *world, to *process, e *linkseq.Envelope) {
				if to.numbers == nil {
					to.numbers = map[string]uint64{}
				}
				if !e.Keepalive() {
					to.numbers[e.From]++
				}
				e.Number = to.numbers[e.From]
			}},
		bug{name: "old generation delivered", from: 11670, spine: true, tune: tuned(20, 0, (*spine).back, (*spine).restore),
			envelope: func(w *world, _ *process, e *linkseq.Envelope) {
				e.Generation = w.generation
				for i := range e.Deliveries {
					e.Deliveries[i].Generation = w.generation
				}
			}},
		bug{name: "re-sync without refreshing joined_sequence", spine: true, tune: flipping,
			source: func(w *world, s delivery.Source) delivery.Source {
				return &firstRows{sourceOf: sourceOf{Source: s, w: w}, rows: map[string]table.UserChat{}}
			}},
		bug{name: "re-sync that reads the user's rows once and for all", spine: true, tune: tuned(20, 20, (*spine).lapse),
			source: func(w *world, s delivery.Source) delivery.Source {
				return &onceRows{sourceOf: sourceOf{Source: s, w: w}, rows: map[string][]table.UserChat{}}
			}},
		bug{name: "re-sync that compares with old heads", from: 20826, spine: true, tune: tuned(20, 20, (*spine).lapse),
			source: func(w *world, s delivery.Source) delivery.Source {
				return &onceHeads{sourceOf: sourceOf{Source: s, w: w}, heads: map[string]*table.Head{}}
			}},
	)
}

// inStore is a world whose log is in the store, where one process at a time can write.
func inStore(s *spine) { s.inStore, s.fencing, s.syncing = true, true, false }

// The log in the store has each event once, also after crashes and losses.
func TestStoreLogSchedules(t *testing.T) {
	schedules(t, 250, 150, 1, &bug{spine: true, tune: inStore})
}

// tuned leaves only the durable path, some kinds of trouble, and keepalives.
func tuned(lossy, hidden int, acts ...func(*spine)) func(*spine) {
	return func(s *spine) {
		s.quiet, s.lossy, s.unmet, s.hidden, s.share, s.w.acts, s.w.acting = true, lossy, 0, hidden, 400, actsOf(0), 80
		s.acts = append([]func(*spine){(*spine).round}, acts...)
	}
}

// unmeeting is a world of workers that come and go, and that not all processes hear of.
func unmeeting(s *spine) {
	tuned(400, 0, (*spine).crashFanout, (*spine).crashFanout, (*spine).crashFanout)(s)
	s.unmet = 900
}

// flipping is a world of memberships that end and begin, and of streams that break.
func flipping(s *spine) {
	w := s.w
	w.acts = slices.Concat(actsOf(0), slices.Repeat([]func(*world){(*world).actFlip, (*world).actCut, (*world).actSend},
		6))
}

func actsOf(group int) []func(*world) { return acts[group] }

// firstRows shows a membership with the join of the user's first one.
type firstRows struct {
	sourceOf
	rows map[string]table.UserChat
}

func (s *firstRows) UserChatsOf(ctx context.Context, user string, ids []string) ([]*table.UserChat, error) {
	rows, err := s.Source.UserChatsOf(ctx, user, ids)
	for _, r := range rows {
		if r == nil {
			continue
		}
		k := user + "/" + r.ChatID
		first, ok := s.rows[k]
		if !ok {
			s.rows[k], first = *r, *r
		}
		r.JoinedSequence, r.JoinedVersion = first.JoinedSequence, first.JoinedVersion
	}
	return rows, err
}

// Overviews shows the user's own state with it too.
func (s *firstRows) Overviews(ctx context.Context, user string, ids []string) ([]*chatv1.ChatOverview, error) {
	list, err := s.Source.Overviews(ctx, user, ids)
	for _, ov := range list {
		if first, ok := s.rows[user+"/"+ov.GetChat().GetChatId()]; ok {
			ov.State.JoinedSequence = first.JoinedSequence
		}
	}
	return list, err
}

type onceRows struct {
	sourceOf
	rows map[string][]table.UserChat
}

func (s *onceRows) UserChats(ctx context.Context, user string) ([]table.UserChat, error) {
	if rows, ok := s.rows[user]; ok {
		return rows, nil
	}
	rows, err := s.Source.UserChats(ctx, user)
	if err == nil {
		s.rows[user] = rows
	}
	return rows, err
}

type onceHeads struct {
	sourceOf
	heads map[string]*table.Head
}

func (s *onceHeads) Heads(ctx context.Context, ids []string) ([]*table.Head, error) {
	heads, err := s.Source.Heads(ctx, ids)
	for i, h := range heads {
		if old := s.heads[ids[i]]; old != nil {
			heads[i] = old
		} else if h != nil {
			s.heads[ids[i]] = h
		}
	}
	return heads, err
}
