package explorer

import (
	"slices"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// compare demands that every device shows what the store has, and that no
// promise was broken.
func (w *world) compare() {
	truth := view.New(view.Config{Store: w.store, History: store.Line(w.generation), TokenKey: tokenKey,
		Clock: func() time.Time { return w.now }})
	for _, l := range w.logs {
		w.compareLog(l)
	}
	if w.spine != nil {
		w.spine.compare()
	}
	for _, d := range w.phones {
		w.compareSends(d)
		w.compareMarks(d)
		w.compareList(truth, d)
	}
}

// compareLog demands that the log is what the store has.
func (w *world) compareLog(l *chatLog) {
	page, err := w.store.Query(w.ctx, store.Query{Table: store.Messages, PK: l.id})
	if err != nil || len(page.Rows) != len(l.bySequence) {
		w.failf("%s has %d messages for %d events (%v)", short(l.id), len(page.Rows), len(l.bySequence), err)
		return
	}
	for i, r := range page.Rows {
		m, err := table.MessageFrom(r)
		if e := l.message(int64(i) + 1); err != nil || m.Sequence != int64(i)+1 || m.Content != e.GetContent() ||
			m.Version != e.GetMetadata().GetVersion() {
			w.failf("message %d of %s is %v, its event %v (%v)", i+1, short(l.id), m, e, err)
		}
	}
	if len(l.pending) > 0 {
		w.failf("members of %s are pending for ever", short(l.id))
	}
}

func (w *world) compareSends(d *phone) {
	if left := d.m.Outbox(); len(left) > 0 {
		w.failf("%s has unsent messages: %v", d.name, left)
	}
	for id, s := range d.sent {
		stored, there := w.chat(s.chat).requests[id]
		ack, acked := d.acked[id]
		_, refused := d.refused[id]
		switch {
		case acked && (!there || stored != ack.sequence):
			w.failf("%s was promised %v for %s, stored is %d", d.name, ack, id, stored)
		case refused && there && d.tries[id] == 1: // else it may be an earlier attempt that came late
			w.failf("%s was answered that %s is refused, but it is stored as %d", d.name, id, stored)
		case !acked && !refused:
			w.failf("%s never heard of %s again", d.name, id)
		}
	}
}

func (w *world) compareList(truth *view.Reader, d *phone) {
	rows, err := truth.UserChats(w.ctx, d.user)
	if err != nil {
		w.failf("chats of %s: %v", d.user, err)
		return
	}
	var want []string
	for _, r := range rows {
		if !r.Left() {
			want = append(want, r.ChatID)
		}
	}
	if got := d.m.Chats(); !slices.Equal(got, want) {
		w.failf("%s lists %v, the store %v", d.name, got, want)
		return
	}
	for _, r := range rows {
		if r.Left() {
			continue
		}
		v, _ := d.m.View(r.ChatID)
		ov, err := truth.Overview(w.ctx, d.user, r.ChatID)
		if err != nil {
			w.failf("chat of %s: %v", d.user, err)
			return
		}
		w.compareOverview(d, v, ov)
		if v.Open {
			w.compareContent(d, v, r)
		}
	}
}

func (w *world) compareOverview(d *phone, v device.View, ov *chatv1.ChatOverview) {
	id := short(v.ChatID)
	h, hh := v.Head, ov.GetHead()
	if h.GetVersion() != hh.GetVersion() || h.GetSequence() != hh.GetSequence() ||
		h.GetMembershipVersion() != hh.GetMembershipVersion() ||
		h.GetChangedAt().AsTime() != hh.GetChangedAt().AsTime() {
		w.failf("%s lists %s with head %v, the store %v", d.name, id, h, hh)
	}
	if p, pp := h.GetLastMessage(), hh.GetLastMessage(); p.GetSequence() != pp.GetSequence() ||
		p.GetText() != pp.GetText() || p.GetSenderId() != pp.GetSenderId() {
		w.failf("%s lists %s with preview %v, the store %v", d.name, id, p, pp)
	}
	s, ss := v.State, ov.GetState()
	if s.GetReadSequence() != ss.GetReadSequence() || s.GetJoinedSequence() != ss.GetJoinedSequence() ||
		s.GetPeerReadSequence() != ss.GetPeerReadSequence() || v.Unread != ss.GetUnreadCount() {
		w.failf("%s lists %s with state %v and %d unread, the store %v", d.name, id, s, v.Unread, ss)
	}
	if s.GetArchived() != ss.GetArchived() || s.GetMutedUntil().AsTime() != ss.GetMutedUntil().AsTime() ||
		s.GetRole() != ss.GetRole() {
		w.failf("%s lists %s as muted, archived, role: %v, the store %v", d.name, id, s, ss)
	}
	c, cc := v.Chat, ov.GetChat()
	if c.GetMemberCount() != cc.GetMemberCount() || c.GetName() != cc.GetName() || c.GetType() != cc.GetType() ||
		c.GetHistory() != cc.GetHistory() ||
		c.GetUpdatedAt().AsTime() != cc.GetUpdatedAt().AsTime() || c.GetCreatedBy() != cc.GetCreatedBy() ||
		!slices.Equal(c.GetDirectUserIds(), cc.GetDirectUserIds()) {
		w.failf("%s lists %s as %v, the store %v", d.name, id, c, cc)
	}
}

// compareContent demands that messages and members of an open chat are complete.
func (w *world) compareContent(d *phone, v device.View, row table.UserChat) {
	l := w.chat(v.ChatID)
	id := short(v.ChatID)
	if !v.Loaded || v.Version != int64(len(l.entries)) {
		w.failf("%s has %s at version %d (loaded %v), the store has %d", d.name, id, v.Version, v.Loaded, len(l.entries))
		return
	}
	if v.First < row.FirstSequence() || v.HasOlder != (v.First > row.FirstSequence()) {
		w.failf("%s has %s from message %d on (older: %v), the user may see %d", d.name, id, v.First, v.HasOlder,
			row.FirstSequence())
	}
	for _, m := range v.Messages {
		w.checkMessage(l, d.user, m)
	}
	w.checkShown(d, v.ChatID)
	w.comparePeer(d, v, row)
	page, err := w.store.Query(w.ctx, store.Query{Table: store.ChatMemberships, PK: l.id})
	if err != nil || len(page.Rows) != len(v.Present) {
		w.failf("%s shows members %v of %s, the store has %d (%v)", d.name, v.Present, id, len(page.Rows), err)
		return
	}
	for i, r := range page.Rows {
		m := table.MembershipFrom(l.id, r.Key.SK, r.Item)
		if p := v.Present[i]; p.UserID != m.UserID || p.Version != m.Version ||
			p.JoinedAt.AsTime().UnixMilli() != m.JoinedAt || p.Role != roles[m.Role] {
			w.failf("%s shows member %v of %s, the store has %v", d.name, p, id, m)
		}
	}
}

var roles = map[table.Role]chatv1.MemberRole{
	table.Owner:  chatv1.MemberRole_MEMBER_ROLE_OWNER,
	table.Admin:  chatv1.MemberRole_MEMBER_ROLE_ADMIN,
	table.Member: chatv1.MemberRole_MEMBER_ROLE_MEMBER,
}
