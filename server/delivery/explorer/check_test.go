package explorer

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// checkFrame demands that the device's user may see a frame.
func (w *world) checkFrame(d *phone, f *deliveryv1.Frame) {
	if f.GetChatId() == "" {
		return
	}
	l := w.chat(f.GetChatId())
	if h := f.GetHead(); h != nil {
		w.checkHead(l, d.user, h.GetVersion())
		w.checkDurable(l, d.name, h.GetVersion())
		if ov := h.GetOverview(); ov != nil {
			w.checkOverview(l, d.user, ov, w.everOf(l, d.user))
		}
		return
	}
	v := f.GetVersion()
	if v == 0 {
		return
	}
	if v > int64(len(l.entries)) {
		w.failf("%s gets version %d of %s, which has %d", d.name, v, short(l.id), len(l.entries))
		return
	}
	w.checkDurable(l, d.name, v)
	if !l.mayShow(d.user, v) {
		w.failf("%s gets version %d of %s, which is not for %s: %v", d.name, v, short(l.id), d.user, l.spans[d.user])
	}
	if m := f.GetMessage(); m != nil {
		w.checkMessage(l, d.user, m)
	}
}

// checkDurable demands that what is shown is on stable storage.
func (w *world) checkDurable(l *chatLog, who string, version int64) {
	if version > 0 && version <= int64(len(l.entries)) && l.entries[version-1].moment > w.synced {
		w.failf("%s gets version %d of %s, which a crash could take back", who, version, short(l.id))
	}
}

func (w *world) everOf(l *chatLog, user string) []span { return l.spans[user] }

// checkHead demands that a version is not newer than the user's last removal.
func (w *world) checkHead(l *chatLog, user string, version int64) {
	if !slices.ContainsFunc(l.spans[user], func(s span) bool { return s.leave == 0 || version <= s.leave }) {
		w.failf("%s hears of version %d of %s: %v", user, version, short(l.id), l.spans[user])
	}
}

func (w *world) checkMessage(l *chatLog, user string, m *messagev1.Message) {
	e := l.message(m.GetSequence())
	if e == nil || e.GetContent() != m.GetContent() || e.GetMessageId() != m.GetMessageId() ||
		e.GetSenderId() != m.GetSenderId() ||
		e.GetMetadata().GetVersion() != m.GetVersion() || e.GetClientMessageId() != m.GetClientMessageId() ||
		e.GetCreatedAt().AsTime() != m.GetCreatedAt().AsTime() || int32(e.GetContentType()) != int32(m.GetContentType()) {
		w.failf("%s gets message %v of %s, the log has %v", user, m, short(l.id), e)
	}
}

// checkAnswer demands that some membership of the user, true at some moment while
// the answer was made, allows all of it.
func (w *world) checkAnswer(user string, req, res proto.Message, began int) {
	named, ok := req.(interface{ GetChatId() string })
	if !ok {
		if r, ok := res.(*deliveryv1.SyncResponse); ok {
			for _, ov := range r.GetOverviews() {
				l := w.chat(ov.GetChat().GetChatId())
				w.checkOverview(l, user, ov, l.during(user, began, w.moment))
			}
		}
		return
	}
	l := w.chat(named.GetChatId())
	spans := l.during(user, began, w.moment)
	switch r := res.(type) {
	case *chatv1.GetChatResponse:
		w.checkOverview(l, user, r.GetOverview(), spans)
	case *chatv1.ListMembersResponse:
		w.checkContent(l, user, spans, r.GetHead(), nil, nil, 0)
	case *messagev1.ListMessagesResponse:
		w.checkContent(l, user, spans, r.GetHead(), r.GetMessages(), nil, 0)
	case *messagev1.ListChangesResponse:
		w.checkContent(l, user, spans, r.GetHead(), r.GetMessages(), r.GetChanges(), r.GetVersion())
	}
}

// checkOverview checks a chat as the list shows it.
func (w *world) checkOverview(l *chatLog, user string, ov *chatv1.ChatOverview, spans []span) {
	// The state was read last, so it says which membership the rest is for.
	joined := ov.GetState().GetJoinedSequence()
	of := slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return s.joinSeq != joined })
	if len(of) == 0 {
		w.failf("%s gets %s in the list, joined at %d: %v", user, short(l.id), joined, spans)
		return
	}
	w.checkContent(l, user, of, ov.GetHead(), nil, nil, ov.GetChat().GetVersion())
}

// checkContent demands that one of the memberships allows everything.
func (w *world) checkContent(
	l *chatLog, user string, spans []span, head *chatv1.ChatHead, messages []*messagev1.Message,
	changes []*messagev1.Change, version int64,
) {
	w.checkDurable(l, user, head.GetVersion())
	var why string
	for _, s := range spans {
		if why = s.content(l, head, messages, changes, version); why == "" {
			for _, m := range messages {
				w.checkMessage(l, user, m)
			}
			for _, c := range changes {
				if c.GetMessage() != nil {
					w.checkMessage(l, user, c.GetMessage())
				}
			}
			return
		}
	}
	w.failf("%s gets an answer about %s that no membership allows (%s): %v", user, short(l.id), why, spans)
}

func (s *span) content(
	l *chatLog, head *chatv1.ChatHead, messages []*messagev1.Message, changes []*messagev1.Change, version int64,
) string {
	beyond := func(v int64) bool { return s.leave != 0 && v > s.leave }
	if beyond(head.GetVersion()) || beyond(version) {
		return fmt.Sprintf("head %d, version %d", head.GetVersion(), version)
	}
	hidden := func(sequence, v int64) bool {
		return beyond(v) || (l.sinceJoined && (v < s.floor || sequence <= s.joinSeq))
	}
	if p := head.GetLastMessage(); p != nil {
		m := l.message(p.GetSequence())
		if m == nil || m.GetContent() != p.GetText() || m.GetSenderId() != p.GetSenderId() {
			return fmt.Sprintf("preview %v of %v", p, m)
		}
		if hidden(p.GetSequence(), m.GetMetadata().GetVersion()) {
			return fmt.Sprintf("preview %v", p)
		}
	}
	for _, m := range messages {
		if hidden(m.GetSequence(), m.GetVersion()) {
			return fmt.Sprintf("message %d", m.GetSequence())
		}
	}
	for _, c := range changes {
		switch {
		case c.GetMessage() != nil && hidden(c.GetMessage().GetSequence(), c.GetMessage().GetVersion()),
			beyond(c.GetVersion()), beyond(c.GetMembershipChange().GetVersion()), beyond(c.GetChat().GetVersion()),
			l.sinceJoined && c.GetVersion() < s.floor:
			return fmt.Sprintf("change %v", c)
		}
	}
	return ""
}

// checkShown demands that what a device shows of a chat is exactly the chat as of
// the version that it applied, and that this version never goes back.
func (w *world) checkShown(d *phone, chatID string) {
	v, ok := d.m.View(chatID)
	if !ok || !v.Loaded {
		return
	}
	if d.m.Session().Generation != w.generation {
		delete(d.applied, chatID)
		return // of a store that is no more; the device is about to learn of it
	}
	l := w.chat(chatID)
	if v.Version < d.applied[chatID] {
		w.failf("%s goes back from version %d of %s to %d", d.name, d.applied[chatID], short(chatID), v.Version)
	}
	d.applied[chatID] = v.Version
	if v.Version > int64(len(l.entries)) {
		w.failf("%s shows version %d of %s, which has %d", d.name, v.Version, short(chatID), len(l.entries))
		return
	}
	if spans := l.spans[d.user]; l.sinceJoined && len(spans) > 0 && spans[len(spans)-1].join > v.Version {
		// What the user may see has become another part of the chat, and answers go
		// by that. The device is about to learn of it, and starts over.
		return
	}
	if err := v.Check(); err != nil {
		w.failf("%s: %v", d.name, err)
	}
	if last, want := v.First+int64(len(v.Messages))-1, l.sequenceAt(v.Version); last != want {
		w.failf("%s shows %s up to message %d at version %d, which has %d", d.name, short(chatID), last, v.Version, want)
	}
	if n := len(v.Messages); n > 0 {
		w.checkMessage(l, d.user, v.Messages[n-1])
	}
}
