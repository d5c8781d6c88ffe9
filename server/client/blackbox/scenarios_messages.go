package blackbox

import (
	"slices"
	"time"
)

// pair makes the user of the client, another user, and a chat of each kind.
func (w *world) pair() (ann, bob *user, direct, group string) {
	ann, bob = w.user("ann"), w.user("bob")
	return ann, bob, bob.direct(ann), bob.group("Tea", ann)
}

// device is pair with a client that shows both chats.
func (w *world) device() (ann, bob *user, direct, group string, c *child) {
	ann, bob, direct, group = w.pair()
	c = w.client(ann).opens(direct, group).start()
	w.equal(c)
	return ann, bob, direct, group, c
}

func messageScenarios() []Scenario {
	return []Scenario{
		{Name: "first start", run: firstStart,
			Must: "The first start shows all chats, with the newest messages of those that are opened."},
		{Name: "first start with an expired token", run: expiredToken,
			Must: "A client whose access token has expired asks for another one, and shows everything."},
		{Name: "live messages", run: liveMessages,
			Must: "Messages of several chats appear while they are sent, each of them once and in order."},
		{Name: "own messages", run: ownMessages,
			Must: "The user's messages appear once, leave the outbox, and are not unread, whichever device sent them."},
		{Name: "350 messages while offline", run: func(w *world) { whileOffline(w, false, false) },
			Must: "After an absence everything that was sent meanwhile appears, in open and in other chats."},
		{Name: "350 messages while closed", Needs: []string{abilityKeep},
			run:  func(w *world) { whileOffline(w, true, false) },
			Must: "A client that was not running shows after its start what was sent meanwhile."},
		{Name: "350 messages while closed, the token expired", Needs: []string{abilityKeep},
			run:  func(w *world) { whileOffline(w, true, true) },
			Must: "A client that starts after an absence with an expired access token asks for another one and shows everything."},
		{Name: "older messages", Needs: []string{abilityOlder}, run: olderMessages,
			Must: "The user can page back to the first message, and no message is missing or shown twice."},
		{Name: "many chats", run: manyChats,
			Must: "A user of 130 chats sees all of them, and those that changed while the client was offline."},
	}
}

func firstStart(w *world) {
	ann, bob, direct, group := w.pair()
	cyd := w.user("cyd")
	bob.send(direct, 5)
	bob.send(group, 120)
	ann.read(group, 100)
	bob.send(bob.group("Unread", ann, cyd), 3)
	bob.group("Empty", ann)
	w.equal(w.client(ann).opens(direct, group).start())
}

func expiredToken(w *world) {
	ann, bob, direct, _ := w.pair()
	bob.send(direct, 5)
	c := w.client(ann).opens(direct)
	c.stale = true
	w.equal(c.start())
	if c.wanted() == 0 {
		w.failf("the client did not ask for a token")
	}
}

func liveMessages(w *world) {
	ann, bob, direct, group := w.pair()
	cyd := w.user("cyd")
	other := cyd.group("Other", ann, bob)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	w.alongside(bob.chatter(direct, 20, 10*time.Millisecond), bob.chatter(group, 20, 10*time.Millisecond),
		cyd.chatter(other, 20, 10*time.Millisecond), bob.chatter(other, 20, 10*time.Millisecond))
	w.equal(c)
	c.opens(other)
	w.equal(c)
}

func ownMessages(w *world) {
	ann, bob, direct, group, c := w.device()
	bob.send(group, 2)
	texts := c.send(group, 3)
	w.equal(c)
	w.once(ann, group, texts)
	ann.send(direct, 2)
	ann.send(group, 2)
	w.equal(c)
	bob.send(direct, 1)
	w.equal(c)
}

func whileOffline(w *world, closed, stale bool) {
	ann, bob, direct, group := w.pair()
	other := bob.group("Closed", ann)
	bob.send(direct, 10)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	if closed {
		c.stop()
	} else {
		w.proxy.setDown(true)
	}
	bob.send(direct, 350)
	bob.send(other, 60)
	ann.send(other, 2)
	if closed {
		c.stale = stale
		c.start()
	} else {
		w.proxy.setDown(false)
	}
	w.equal(c)
	c.opens(other)
	w.equal(c)
}

func olderMessages(w *world) {
	ann, bob, direct, _ := w.pair()
	bob.send(direct, 230)
	c := w.client(ann).opens(direct).start()
	w.equal(c)
	had := -1
	w.until("all older messages are shown", func() string {
		chats := c.show().Chats
		i := slices.IndexFunc(chats, func(s ShownChat) bool { return s.Chat == direct })
		if i < 0 {
			return "the chat is not shown"
		}
		list := chats[i].Messages
		if len(list) > 0 && list[0].Sequence == 1 {
			return ""
		}
		if len(list) != had {
			had = len(list)
			c.say(command{Do: "older", Chat: direct})
		}
		return "the oldest messages shown are" + span(list)
	}, c)
	w.equal(c)
}

func manyChats(w *world) {
	ann, bob, _, _ := w.pair()
	var chats []string
	for range 128 {
		chats = append(chats, bob.group("Many", ann))
	}
	c := w.client(ann).start()
	w.equal(c)
	w.proxy.setDown(true)
	for _, chat := range chats[:110] {
		bob.send(chat, 1)
	}
	w.proxy.setDown(false)
	w.equal(c)
}
