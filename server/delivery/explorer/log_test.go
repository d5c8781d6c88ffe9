package explorer

import (
	"slices"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// span is one membership of a user in a chat. Moments are numbers of commits.
type span struct {
	join, leave      int64 // versions; leave is 0 for a member
	floor            int64 // version from which on changes are for the user where the history begins with joining
	joinSeq          int64
	joinedAt, leftAt int // moments
}

// entry is one change of a chat.
type entry struct {
	event    event.Event
	message  *eventv1.MessagePersisted // nil for another change
	sequence int64                     // of the chat with this change
	moment   int
}

// chatLog is what was committed to one chat, the truth that everything shown is
// compared with.
type chatLog struct {
	id          string
	sinceJoined bool
	entries     []entry // by version, from 1
	bySequence  []int64 // versions of messages, by sequence from 1
	spans       map[string][]span
	requests    map[string]int64 // sequence by client_message_id
	pending     []string         // users on their way in
	answered    int64            // sequence when the creation was answered first; -1 before
}

// commit is one plan that changed a chat, for the repair.
type commit struct {
	chat              string
	version           int64
	membershipVersion int64
	targets           []string
}

func (l *chatLog) sequenceAt(version int64) int64 {
	if version <= 0 || version > int64(len(l.entries)) {
		return 0
	}
	return l.entries[version-1].sequence
}

func (l *chatLog) message(sequence int64) *eventv1.MessagePersisted {
	if sequence < 1 || sequence > int64(len(l.bySequence)) {
		return nil
	}
	return l.entries[l.bySequence[sequence-1]-1].message
}

// open returns the user's present membership, nil without one.
func (l *chatLog) open(user string) *span {
	s := l.spans[user]
	if len(s) == 0 || s[len(s)-1].leave != 0 {
		return nil
	}
	return &s[len(s)-1]
}

// mayShow reports whether a change may be shown to a user at all: the user was
// a member when it was committed, or became one later in a chat whose history is
// open.
func (l *chatLog) mayShow(user string, version int64) bool {
	for _, s := range l.spans[user] {
		if s.allows(l, version) {
			return true
		}
	}
	return false
}

// allows reports whether a member of this span may see a change.
func (s *span) allows(l *chatLog, version int64) bool {
	return (s.leave == 0 || version <= s.leave) && (!l.sinceJoined || version >= s.floor)
}

// during returns the user's memberships that were true at some moment between two.
func (l *chatLog) during(user string, from, to int) []span {
	var out []span
	for _, s := range l.spans[user] {
		if s.joinedAt <= to && (s.leave == 0 || s.leftAt > from) {
			out = append(out, s)
		}
	}
	return out
}

// record takes a committed plan into the log and checks it.
func (w *world) record(p *store.Plan) {
	var c *commit
	for i := range p.Writes {
		wr := &p.Writes[i]
		if wr.Key.Table != store.Events || wr.Op != store.OpPut {
			continue
		}
		if c == nil {
			w.moment++
			c = &commit{chat: wr.Key.PK}
		}
		row, err := table.EventFrom(store.Row{Key: wr.Key, Item: wr.Item})
		if err != nil {
			w.failf("event of %s cannot be read: %v", wr.Key, err)
			return
		}
		e, err := event.Unmarshal(row.Type, row.Payload)
		if err != nil {
			w.failf("event of %s cannot be decoded: %v", wr.Key, err)
			return
		}
		w.recordEvent(w.chat(wr.Key.PK), row.Version, e, c)
	}
	if s := w.spine; s != nil {
		for i := range p.Writes {
			if wr := &p.Writes[i]; wr.Key.Table == store.Outbox && wr.Op == store.OpPut {
				s.rows++
			}
		}
	}
	for i := range p.Writes { // after the events, which may be about users pending before
		if wr := &p.Writes[i]; wr.Key.Table == store.PendingMembers {
			w.chat(wr.Key.PK).pending = table.PendingFrom(wr.Key.PK, w.peek(wr.Key)).Members
		}
	}
	if c == nil {
		return
	}
	w.commits = append(w.commits, *c)
	l := w.chat(c.chat)
	if w.trace != nil {
		w.tracef("commit %s@%d targets %v", short(c.chat), c.version, c.targets)
	}
	head := table.HeadFrom(c.chat, w.peek(table.HeadKey(c.chat)))
	if head.Version != int64(len(l.entries)) || head.Sequence != int64(len(l.bySequence)) {
		w.failf("head of %s says version %d sequence %d after %d changes and %d messages", short(c.chat), head.Version,
			head.Sequence, len(l.entries), len(l.bySequence))
	}
	if head.MembershipVersion != c.membershipVersion {
		w.failf("head of %s says membership version %d, its last event %d", short(c.chat), head.MembershipVersion,
			c.membershipVersion)
	}
	if len(c.targets) > 0 {
		w.checkCount(l)
	}
}

func (w *world) chat(id string) *chatLog {
	l := w.logs[id]
	if l == nil {
		l = &chatLog{id: id, spans: map[string][]span{}, requests: map[string]int64{}, answered: -1}
		w.logs[id] = l
		w.chatIDs = append(w.chatIDs, id)
	}
	return l
}

func (w *world) recordEvent(l *chatLog, version int64, e event.Event, c *commit) {
	if want := int64(len(l.entries)) + 1; version != want || e.GetMetadata().GetVersion() != want {
		w.failf("version %d of %s is committed where %d should be", version, short(l.id), want)
		return
	}
	en := entry{event: e, sequence: int64(len(l.bySequence)), moment: w.moment}
	switch e := e.(type) {
	case *eventv1.MessagePersisted:
		en.message = e
		en.sequence++
		if e.GetSequence() != en.sequence {
			w.failf("message %d of %s is committed where %d should be", e.GetSequence(), short(l.id), en.sequence)
		}
		if l.open(e.GetSenderId()) == nil {
			w.failf("%s sent to %s without being a member", e.GetSenderId(), short(l.id))
		}
		if old, ok := l.requests[e.GetClientMessageId()]; ok {
			w.failf("request %s of %s is stored as message %d and %d", e.GetClientMessageId(), short(l.id), old, e.GetSequence())
		}
		l.requests[e.GetClientMessageId()] = e.GetSequence()
		l.bySequence = append(l.bySequence, version)
	case *eventv1.ChatCreated:
		l.sinceJoined = e.GetHistory() == eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED
		w.joined(l, e.GetCreatedBy(), version, 0)
		c.targets = append(c.targets, e.GetCreatedBy())
	case *eventv1.MembershipChanged:
		c.targets = append(c.targets, e.GetUserId())
		switch e.GetChangeType() {
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
			w.joined(l, e.GetUserId(), version, e.GetJoinedSequence())
		case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
			s := l.open(e.GetUserId())
			if s == nil && slices.Contains(l.pending, e.GetUserId()) {
				break // removed before ever being a member
			}
			if s == nil {
				w.failf("%s is removed from %s without being a member", e.GetUserId(), short(l.id))
				return
			}
			s.leave, s.leftAt = version, w.moment
		}
	}
	l.entries = append(l.entries, en)
	if w.spine != nil {
		w.spine.events[e.GetMetadata().GetEventId()] = e
	}
	c.version, c.membershipVersion = version, e.GetMetadata().GetMembershipVersion()
}

func (w *world) joined(l *chatLog, user string, version, sequence int64) {
	if l.open(user) != nil {
		w.failf("%s is added to %s twice", user, short(l.id))
	}
	s := span{join: version, floor: version, joinSeq: sequence, joinedAt: w.moment}
	switch arrives := slices.Contains(l.pending, user); {
	case arrives && l.answered >= 0 && sequence > l.answered:
		w.failf("%s arrives in %s at sequence %d, its creation was answered at %d", user, short(l.id), sequence, l.answered)
	case arrives && sequence == 0:
		s.floor = 1 // the membership begins with the group's
	case sequence != int64(len(l.bySequence)):
		w.failf("%s joins %s at sequence %d, which has %d", user, short(l.id), sequence, len(l.bySequence))
	}
	l.spans[user] = append(l.spans[user], s)
}

// answered notes that a creation was answered: from now on the group is there for all
// whom it was created with.
func (w *world) answered(l *chatLog) {
	if l.answered < 0 {
		l.answered = int64(len(l.bySequence))
	}
}

// checkCount demands that the chat's member count is exact.
func (w *world) checkCount(l *chatLog) {
	row := table.ChatFrom(l.id, w.peek(table.ChatKey(l.id)))
	page, err := w.store.Query(w.ctx, store.Query{Table: store.ChatMemberships, PK: l.id})
	if err != nil {
		w.failf("members of %s: %v", short(l.id), err)
		return
	}
	pending := 0
	if it := w.peek(table.PendingKey(l.id)); it != nil {
		pending = len(table.PendingFrom(l.id, it).Members)
	}
	if n := len(page.Rows) + pending; row.MemberCount != int64(n) {
		w.failf("%s counts %d members and has %d", short(l.id), row.MemberCount, n)
	}
	for _, r := range page.Rows {
		if l.open(r.Key.SK) == nil {
			w.failf("%s is in the member list of %s, but not by its events", r.Key.SK, short(l.id))
		}
	}
}

// peek reads past all interleaving.
func (w *world) peek(k store.Key) store.Item {
	it, err := w.store.Get(w.ctx, k, store.Strong)
	if err != nil {
		w.failf("read %s: %v", k, err)
	}
	return it
}

// short is the end of an id, for messages.
func short(id string) string { return "c" + id[len(id)-4:] }
