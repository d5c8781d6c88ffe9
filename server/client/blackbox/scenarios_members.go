package blackbox

import chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"

func memberScenarios() []Scenario {
	return []Scenario{
		{Name: "removed while online", run: func(w *world) { removed(w, false) },
			Must: "A chat disappears when the user is removed from it."},
		{Name: "removed while offline", run: func(w *world) { removed(w, true) },
			Must: "A chat from which the user was removed during an absence disappears."},
		{Name: "removed and added again while offline", run: addedAgain,
			Must: "A user who was removed and added again during an absence sees the chat as a member of today."},
		{Name: "chats while online", run: func(w *world) { chatsChange(w, false) },
			Must: "Chats that others create, rename and that the user leaves on another device appear, change and disappear."},
		{Name: "chats while offline", run: func(w *world) { chatsChange(w, true) },
			Must: "Chats that were created, renamed or left during an absence appear, change and disappear."},
		{Name: "members and roles while online", run: func(w *world) { roles(w, false) },
			Must: "An open chat shows its present members with their roles."},
		{Name: "members and roles while offline", run: func(w *world) { roles(w, true) },
			Must: "An open chat shows the members and roles that changed during an absence."},
		{Name: "refused message", run: refusedMessage,
			Must: "A message to a chat that the user is no longer in is reported with its text, and the next messages go out."},
	}
}

// absent has a client be offline while something happens, or online.
func (w *world) absent(c *child, offline bool, happens func()) {
	w.equal(c)
	w.proxy.setDown(offline)
	happens()
	w.proxy.setDown(false)
	w.equal(c)
}

func removed(w *world, offline bool) {
	ann, bob, direct, group := w.pair()
	bob.send(group, 5)
	other := bob.group("Other", ann)
	c := w.client(ann).opens(direct, group).start()
	w.absent(c, offline, func() {
		bob.remove(group, ann)
		bob.remove(other, ann)
		bob.send(group, 3)
	})
	bob.send(direct, 1)
	w.equal(c)
}

func addedAgain(w *world) {
	ann, bob, _, group := w.pair()
	cyd := w.user("cyd")
	bob.send(group, 5)
	since := bob.create(&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Since",
		MemberIds: []string{ann.id}, History: chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED})
	bob.send(since, 5)
	c := w.client(ann).opens(group, since).start()
	w.equal(c)
	w.proxy.setDown(true)
	for _, chat := range []string{group, since} {
		bob.remove(chat, ann)
		bob.send(chat, 4)
		bob.add(chat, cyd)
		bob.add(chat, ann)
		bob.send(chat, 2)
	}
	w.proxy.setDown(false)
	c.closes(group, since) // a chat that ended is no longer open
	w.equal(c)
	c.opens(group, since)
	w.equal(c)
	bob.send(group, 1)
	bob.send(since, 1)
	w.equal(c)
}

func chatsChange(w *world, offline bool) {
	ann, bob, direct, group := w.pair()
	left := bob.group("Left", ann)
	bob.send(left, 2)
	c := w.client(ann).opens(direct, group, left).start()
	made := ""
	w.absent(c, offline, func() {
		made = bob.group("Made", ann)
		bob.send(made, 3)
		bob.rename(group, "Coffee")
		ann.leave(left)
		ann.group("Own", bob)
	})
	c.opens(made)
	bob.rename(made, "Renamed")
	w.equal(c)
}

func roles(w *world, offline bool) {
	ann, bob, _, group := w.pair()
	cyd, dan, eve := w.user("cyd"), w.user("dan"), w.user("eve")
	bob.add(group, cyd)
	bob.add(group, dan)
	c := w.client(ann).opens(group).start()
	w.absent(c, offline, func() {
		bob.setRole(group, ann, chatv1.MemberRole_MEMBER_ROLE_ADMIN)
		bob.setRole(group, cyd, chatv1.MemberRole_MEMBER_ROLE_ADMIN)
		bob.remove(group, dan)
		bob.add(group, eve)
		bob.setRole(group, cyd, chatv1.MemberRole_MEMBER_ROLE_MEMBER)
		bob.setRole(group, eve, chatv1.MemberRole_MEMBER_ROLE_ADMIN)
	})
}

func refusedMessage(w *world) {
	ann, bob, direct, group, c := w.device()
	w.proxy.setDown(true)
	refused := c.send(group, 1)
	c.refusals = 1
	texts := c.send(direct, 2)
	bob.remove(group, ann)
	w.proxy.setDown(false)
	w.shown(c, "the refused message is shown with its text and the reason NOT_A_MEMBER", func(s *Shown) bool {
		for _, r := range s.Refused {
			if r.Text == refused[0] && r.Reason == "NOT_A_MEMBER" {
				return true
			}
		}
		return false
	})
	w.equal(c)
	texts = append(texts, c.send(direct, 1)...)
	w.equal(c)
	w.once(ann, direct, texts)
}
