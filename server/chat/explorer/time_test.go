package explorer

import (
	"context"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The limits of the design, in ms.
const (
	callTime = 20_000 // of a store call
	maxSkew  = 20_000 // of a clock; who is further off is not ready
	// A plan is sent while it is younger than 20 s, after a wait of at most one more, and
	// its stamp is of a clock that may be slow.
	maxAge = 20_000 + 1_000 + callTime + maxSkew
)

// times is what a process has to do with time.
type times struct {
	skew   int64 // of its clock
	begun  int64 // when it took its op
	called int64 // when it made the call that waits
	off    int   // plans that the store puts off yet
	saw    int   // the commits that its answer may rest on
	ends   bool  // it finishes a group, of which no answer tells
}

// begin is for a process that has just taken an op.
func (p *process) begin() {
	w := p.w
	p.begun, p.saw, p.off, p.ends = w.now, 0, 0, false
	if !w.slow {
		return
	}
	if w.rng.IntN(2) == 0 { // forward or back
		p.skew = w.rng.Int64N(2*maxSkew+1) - maxSkew
	}
	if w.rng.IntN(4) == 0 {
		p.off = 1 + w.rng.IntN(60)
	}
}

// clock is the process's.
func (p *process) clock() time.Time {
	if b := p.w.bug; b != nil && b.still && !p.alone {
		return time.UnixMilli(p.begun + p.skew)
	}
	return time.UnixMilli(p.w.now + p.skew)
}

// putOff reports that the store has no capacity for a plan.
func (p *process) putOff() bool {
	if p.off == 0 || p.alone {
		return false
	}
	p.off--
	return true
}

// pause lets time pass. Plans that are under way arrive within their time or never.
func (w *world) pause() {
	d := [...]int64{900, 5_000, 12_000, 19_000, 400_000}[w.rng.IntN(5)]
	w.late = slices.DeleteFunc(w.late, func(l flight) bool {
		if w.now+d-l.sent <= callTime {
			return false
		}
		if w.rng.IntN(4) > 0 && w.failed == "" {
			w.say("late plan of %v", l.op)
			_ = w.execute(l.op, l.p)
		}
		return true
	})
	w.now += d
	w.say("%d ms pass", d)
}

// from is the store that a read sees.
func (p *process) from(t store.Table, c store.Consistency) store.Store {
	if b := p.w.bug; c == store.Eventual || b != nil && b.weak == t {
		return p.w.old
	}
	return p.w.store
}

// sync is the way of a commit to the disk: others see it before it has got there. With
// it, all before it are there, too.
func (p *process) sync(err error) error {
	w := p.w
	if err != nil {
		p.sees("")
		return err
	}
	ticket := w.issued
	if w.rng.IntN(3) == 0 && !p.wait(call{what: "disk"}) {
		return store.ErrClosed
	}
	w.synced = max(w.synced, ticket)
	return nil
}

// Durable implements store.Store.
func (p *process) Durable(context.Context) error {
	w := p.w
	if b := w.bug; b != nil && b.hasty {
		return nil
	}
	ticket := w.issued
	if w.synced < ticket {
		if !p.wait(call{what: "disk"}) {
			return store.ErrClosed
		}
		if p.fate == refused || p.fate == tooLate {
			return store.ErrUnavailable
		}
	}
	w.synced = max(w.synced, ticket)
	return nil
}

// sees notes that a read of a table, or a failed condition, has shown what there is.
func (p *process) sees(t store.Table) {
	if p.ends = p.ends || t == store.PendingMembers; !p.ends && !p.alone {
		p.saw = p.w.issued
	}
}

// promise holds an answer against what a loss of power would take. Who finishes a group
// or counts its members tells nobody.
func (p *process) promise(err error) {
	w, o := p.w, p.op
	if w.bug != nil && w.bug.run != nil || o.kind == finish || o.kind == checkCount || err != nil &&
		!isOne(err, definite) {
		return
	}
	if p.saw > w.synced {
		w.fail("%v: %v is answered by what is not on disk", o, err)
	}
}

// ownRows reads the users' own rows that a plan is about to change.
func (w *world) ownRows(p store.Plan) (rows []table.UserChat) {
	for _, wr := range p.Writes {
		if wr.Key.Table == store.DeliveryState && wr.Op != store.OpCheck {
			rows = append(rows, table.UserChatFrom(wr.Key.PK, wr.Key.SK, w.get(wr.Key)))
		}
	}
	return rows
}

// own holds the change of users' own rows against the rules.
func (w *world) own(o *op, before []table.UserChat) {
	for _, was := range before {
		it := w.get(table.UserChatKey(was.UserID, was.ChatID))
		if it == nil && (o.kind == leave || o.kind == remove) {
			continue // it stands among the rows of chats that were left
		}
		is := table.UserChatFrom(was.UserID, was.ChatID, it)
		if late := w.now - is.ChangedAt; is.ChangedAt != was.ChangedAt && late > maxAge {
			w.fail("%v: a change of the own row %d s ago", o, late/1000)
		}
		want := was
		want.ChangedAt, want.Revision = is.ChangedAt, was.Revision+1
		switch o.kind {
		case send:
			want.Archived, want.OwnCount, want.OwnLast = is.Archived, is.OwnCount, is.OwnLast
			w.ownMessages(o, is)
		case mute:
			want.MutedUntil = o.until
		case archive:
			want.Archived = o.archived
		case markRead:
			if was.UserID != o.caller {
				w.checkPeerRow(o, was, is)
				continue
			}
			w.wantPeerNotified(o, is)
			if want.ReadSequence = is.ReadSequence; is.ReadSequence < was.ReadSequence {
				w.fail("%v: what %s has read goes back from %d to %d", o, was.UserID, was.ReadSequence, is.ReadSequence)
			}
			want.OwnCount, want.OwnLast, want.OwnFrom = is.OwnCount, is.OwnLast, is.ReadSequence
			w.ownMessages(o, is)
		default:
			continue
		}
		r := w.room(was.ChatID)
		if is != want || was.UserID != o.caller {
			w.fail("%v: the row becomes %+v, with another's wish in it or without: it was %+v", o, is, was)
		}
		if o.kind != send && (r.roles[index(o.caller)] == "" || is.ReadSequence > r.head.Sequence &&
			(w.bug == nil || w.bug.run == nil)) {
			w.fail("%v: %+v, of %q in a chat at %d", o, is, r.roles[index(o.caller)], r.head.Sequence)
		}
		if o.kind == mute || o.kind == archive {
			if o.commits++; o.commits > 1 {
				w.fail("%v: carried out twice", o)
			}
		}
	}
}
