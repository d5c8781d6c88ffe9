package chat

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/groupcommit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Read positions are many: every member may report every message. While one of a member's in
// a chat is written the later ones wait, and then the highest of them is written for all.
// Each is answered once that is on the disk. Reports of different members are not put into
// one transaction: the store's group commit already does that, in fewer syncs.
//
// The other person of a direct chat is notified by a write to that person's row: it reaches
// the devices as every change of a row does. Only marks notify, not messages: devices see
// whose message it is, and a message costs no further write.

// maxReads is the number of read positions in a group: a request each, and the row.
const maxReads = 48

// read is a MarkRead on its way to an outcome.
type read struct {
	command.MarkRead
	key     command.Idempotency
	out     MemberState
	err     error
	changed bool // the row or the request is another by now: once more
	again   bool // and so it was before
}

// readGroup is what some read positions of one member in one chat come to.
type readGroup struct {
	reads        []*read // those without an outcome
	seen         []*read // those with an outcome from what was read
	state        MemberState
	receipt      bool // the row as it was read is to be reported
	notifiesPeer bool // the other person of a direct chat learns how far the member has read
}

func newReads(s *Service) *groupcommit.Lanes[*read] {
	return groupcommit.New(groupcommit.Config[*read]{Run: s.runReads, Largest: maxReads, Waiting: s.cfg.Queue})
}

// MarkRead says that a user has read a chat up to a sequence. The position never goes
// back, so the request is safe to repeat without an id, too; with one, the same id with
// another sequence is refused. Errors: ErrInvalidArgument, ErrNotAMember, ErrKeyReused,
// ErrBusy, and the store's.
func (s *Service) MarkRead(ctx context.Context, c MarkRead) (MemberState, error) {
	if err := c.Check(); err != nil {
		return MemberState{}, err
	}
	if err := s.begin(c.Caller, c.ChatID); err != nil {
		return MemberState{}, err
	}
	defer s.admission.End(c.Caller, c.ChatID)
	lane := c.Caller + "#" + c.ChatID
	again := false
	for backoff := s.commits.Backoff(); ; again = true {
		r := &read{MarkRead: c, key: c.Idempotency(), again: again}
		if err := s.reads.Submit(ctx, lane, r); err != nil {
			return MemberState{}, open("request_id", c.RequestID, err)
		}
		if !r.changed {
			return r.out, open("request_id", c.RequestID, r.err)
		}
		if err := backoff.Wait(ctx, ctx); err != nil { // changed meanwhile, or left
			return MemberState{}, err
		}
	}
}

// runReads carries a group out.
func (s *Service) runReads(callerCtx context.Context, reads []*read) {
	defer func() {
		if p := recover(); p != nil {
			fail(reads, fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack()))
		}
	}()
	ctx := callerCtx
	if len(reads) > 1 {
		ctx = context.WithoutCancel(callerCtx) // it is others' call, too
	}
	s.clock.Keep(ctx, s.commits.Transact)
	g := &readGroup{reads: reads}
	if err := s.loadReads(ctx, g); err != nil {
		fail(reads, err)
		return
	}
	if len(g.reads) > 0 {
		s.commitReads(ctx, g)
	}
	s.answerSeen(ctx, g)
}

func fail(reads []*read, err error) {
	for _, r := range reads {
		r.out, r.err, r.changed = MemberState{}, err, false
	}
}

// loadReads reads what the group begins with, and answers what that decides. The member's
// row comes last: it decides whether the head may be shown.
func (s *Service) loadReads(ctx context.Context, g *readGroup) error {
	user, chatID := g.reads[0].Caller, g.reads[0].ChatID
	keys := make([]store.Key, 1, 1+len(g.reads))
	keys[0] = table.HeadKey(chatID)
	for _, r := range g.reads {
		if k := table.RequestKey(r.key.Key); k.PK != "" && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	items, err := s.commits.BatchGet(ctx, keys)
	if err != nil {
		return err
	}
	member, err := s.commits.Get(ctx, table.UserChatKey(user, chatID))
	if err != nil {
		return err
	}
	g.state.Row = table.UserChatFrom(user, chatID, member)
	if items[0] == nil || member == nil || g.state.Row.Left() {
		g.answer(ErrNotAMember, g.reads...)
		return nil
	}
	if err := s.addRole(ctx, &g.state.Row); err != nil {
		return err
	}
	if !s.cfg.NoReadReceipts && g.state.Row.Peer != "" {
		blocks, blocked := rows.Barred(member)
		g.notifiesPeer = !blocks && !blocked
	}
	g.state.Head = table.HeadFrom(chatID, items[0])
	for _, r := range slices.Clone(g.reads) {
		if i := slices.Index(keys, table.RequestKey(r.key.Key)); i > 0 && items[i] != nil {
			_, err := r.key.Replay(items[i])
			r.out.Replayed = err == nil
			// Perhaps the process that carried it out died before its receipt.
			g.receipt = g.receipt || err == nil
			g.answer(err, r)
		}
	}
	return nil
}

// answer gives some of the reads their outcome from what was read.
func (g *readGroup) answer(err error, reads ...*read) {
	for _, r := range reads {
		if r.err = err; err == nil {
			r.out = MemberState{Row: g.state.Row, Head: g.state.Head, Replayed: r.out.Replayed}
		}
	}
	g.seen = append(g.seen, reads...)
	g.reads = slices.DeleteFunc(slices.Clone(g.reads), func(r *read) bool { return slices.Contains(reads, r) })
}

// commitReads writes what the reads come to, the highest position and the requests, or
// answers them by the row as it is if that is nothing. In a direct chat the other person's
// row has the position in the same plan: it is never ahead of this one.
func (s *Service) commitReads(ctx context.Context, g *readGroup) {
	before, head := g.state.Row, g.state.Head
	highest, requests := g.highest()
	if highest <= before.ReadSequence && requests == 0 {
		// Perhaps the repetition of an attempt whose reply was lost, or whose process died
		// before its receipt: another one does no harm.
		g.receipt = g.receipt || highest == before.ReadSequence
		g.answer(nil, g.reads...)
		return
	}
	t := peerUpdate{late: slices.ContainsFunc(g.reads, func(r *read) bool { return r.again })}
	if !t.late && highest >= before.ReadSequence {
		var err error
		if t.row, err = s.other(ctx, g); err != nil {
			fail(g.reads, err)
			return
		}
	}
	at := s.timestamp(max(before.ChangedAt, head.ChangedAt, t.row.ChangedAt))
	writes := g.records(make([]store.Write, 0, requests+2), at)
	after := before
	if highest > before.ReadSequence {
		notifies := g.notifiesPeer && (t.late || t.row.UserID != "")
		own, err := s.ownAfter(ctx, before, highest)
		if err != nil {
			fail(g.reads, err)
			return
		}
		row, update := plan.MarkRead(before, highest, own, at, notifies)
		if after, writes = row, append(writes, update); notifies {
			writes = append(writes, t.write(before, highest, at))
		}
	}
	err := s.commits.Repeat(ctx, writes...)
	if err == nil {
		s.cfg.Receipt(after, head)
		err = s.reportPeer(ctx, g, t)
	}
	for _, r := range g.reads {
		if r.changed = r.changed || conditionError(err) != nil; !r.changed {
			r.err = err
			if err == nil {
				r.out = MemberState{Row: after, Head: head}
			}
		}
	}
}

// maxOwnScan is the number of messages in which a mark looks for the member's own. Between more than
// twice as many a mark counts too few of them, so that too many messages are unread, never too few.
const maxOwnScan = 2000

// ownAfter is how many of a member's own messages follow on sequence, which is above the row's read
// position. They are found among the messages that the mark passes, or among those behind it, whichever
// are fewer. All of them are older than the row as it was read, and messages do not change.
func (s *Service) ownAfter(ctx context.Context, row table.UserChat, sequence int64) (int64, error) {
	count, last := row.OwnUnread()
	if last <= sequence {
		return 0, nil
	}
	from, to := row.ReadSequence+1, sequence
	behind := !row.OwnCounted() || last-sequence < sequence-row.ReadSequence
	if behind {
		from, to = sequence+1, last
	}
	found, exact := int64(0), true
	if most := from + maxOwnScan - 1; to > most {
		to, exact = most, false
	}
	for r, err := range s.commits.Query(ctx, store.Query{
		Table: store.Messages, PK: row.ChatID, From: table.Number(from), To: table.Number(to),
		Limit: min(int(to-from)+1, 100), Consistency: store.Strong,
	}) {
		if err != nil {
			return 0, err
		}
		m, err := table.MessageFrom(r)
		if exact = exact && err == nil; err == nil && m.SenderID == row.UserID {
			found++
		}
	}
	switch {
	case behind:
		count = found
	case exact:
		count -= found
	default:
		count = 0
	}
	return max(count, 1), nil // the last one is behind the mark
}

// peerUpdate is the write to the row of the other person of a direct chat, to whom the read
// position of the member is shown.
//
// The row is read before it is written, and written only as it was read, so that it is known
// under which revision it is shown. But it changes with all that its user does: where that
// was in the way, it is written as it is, and read after that.
type peerUpdate struct {
	row  table.UserChat // as it is shown; empty: there is no such row, or it was not read yet
	late bool           // it is read once it is written
}

func (t *peerUpdate) write(reader table.UserChat, sequence, at int64) (w store.Write) {
	if t.late {
		return plan.MarkPeerReadAnyhow(reader, sequence, at)
	}
	t.row, w = plan.MarkPeerRead(t.row, sequence, at)
	return w
}

// reportPeer reports the row of the user that is notified. After an error a repetition of the mark
// reports it.
func (s *Service) reportPeer(ctx context.Context, g *readGroup, t peerUpdate) error {
	if t.late {
		var err error
		if t.row, err = s.other(ctx, g); err == nil && t.row.UserID != "" {
			err = s.commits.Durable(ctx, nil)
		}
		if err != nil {
			return err
		}
	}
	if t.row.UserID != "" {
		s.cfg.Receipt(t.row, g.state.Head)
	}
	return nil
}

// highest returns how far the reads go, and the number of request ids among them.
func (g *readGroup) highest() (sequence int64, requests int) {
	for i, r := range g.reads {
		if r.key.Key != "" && slices.ContainsFunc(g.reads[:i], func(o *read) bool { return o.key.Key == r.key.Key }) {
			r.changed = true // the same id once more: the first is recorded, and decides about this one
			continue
		}
		sequence = max(sequence, min(r.Sequence, g.state.Head.Sequence))
		if r.key.Key != "" {
			requests++
		}
	}
	return sequence, requests
}

// records adds the writes that record the reads with a request id.
func (g *readGroup) records(writes []store.Write, at int64) []store.Write {
	head := g.state.Head
	for _, r := range g.reads {
		if r.key.Key != "" && !r.changed {
			writes = append(writes, r.key.Record(r.ChatID, head.Version, min(r.Sequence, head.Sequence), at))
		}
	}
	return writes
}

// other reads the row of the user to whom the member's read position is shown; an empty row
// if there is none.
func (s *Service) other(ctx context.Context, g *readGroup) (table.UserChat, error) {
	if !g.notifiesPeer {
		return table.UserChat{}, nil
	}
	peer, chatID := g.state.Row.Peer, g.state.Row.ChatID
	it, err := s.commits.Get(ctx, table.UserChatKey(peer, chatID))
	if err != nil || it == nil {
		return table.UserChat{}, err
	}
	if row := table.UserChatFrom(peer, chatID, it); !row.Left() {
		return row, nil
	}
	return table.UserChat{}, nil
}

// answerSeen waits until the rows that were read are on the disk before it answers.
func (s *Service) answerSeen(ctx context.Context, g *readGroup) {
	if len(g.seen) == 0 {
		return
	}
	err := s.commits.Durable(ctx, nil)
	if err == nil && g.receipt {
		s.cfg.Receipt(g.state.Row, g.state.Head)
		err = s.reportPeer(ctx, g, peerUpdate{late: true})
	}
	if err != nil {
		fail(g.seen, err)
	}
}
