package blackbox

import "fmt"

func markScenarios() []Scenario {
	return []Scenario{
		{Name: "read marks", run: readMarks,
			Must: "What the user reads is read on the user's other devices, and a mark never goes back."},
		{Name: "read marks while offline", run: readOffline,
			Must: "What the user reads without a connection is read on the server later."},
		{Name: "read by the other", run: peerRead,
			Must: "A direct chat shows how far the other person has read."},
		{Name: "sending reads nothing", run: sendingReadsNothing,
			Must: "Messages that are sent after an absence leave what others sent meanwhile unread."},
	}
}

// hasRead waits until the server has a read mark of a user.
func (w *world) hasRead(c *child, chat string, want int64) {
	w.until("the server has the read mark", func() string {
		if got := c.user.state(chat).GetReadSequence(); got != want {
			return fmt.Sprintf("read: got %d, want %d", got, want)
		}
		return ""
	}, c)
}

func readMarks(w *world) {
	ann, bob, direct, group := w.pair()
	bob.send(direct, 10)
	bob.send(group, 10)
	one, two := w.client(ann).opens(direct, group).start(), w.client(ann).opens(direct).start()
	w.equal(one, two)
	one.read(direct, 6)
	w.hasRead(one, direct, 6)
	w.equal(one, two)
	two.read(direct, 4)
	two.read(group, 10)
	w.hasRead(two, group, 10)
	w.equal(one, two)
	if got := ann.state(direct).GetReadSequence(); got != 6 {
		w.failf("read: got %d, want 6", got)
	}
	ann.read(direct, 8) // a third device
	bob.send(direct, 2)
	w.equal(one, two)
}

func readOffline(w *world) {
	ann, bob, direct, group := w.pair()
	bob.send(direct, 10)
	bob.send(group, 10)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	w.proxy.setDown(true)
	c.read(direct, 7)
	c.read(group, 10)
	bob.send(direct, 3)
	w.proxy.setDown(false)
	w.hasRead(c, direct, 7)
	w.hasRead(c, group, 10)
	w.equal(c)
}

func peerRead(w *world) {
	ann, bob, direct, _ := w.pair()
	c := w.client(ann).opens(direct).start()
	w.equal(c)
	texts := c.send(direct, 5)
	w.equal(c)
	bob.read(direct, 3)
	w.equal(c)
	w.proxy.setDown(true)
	bob.read(direct, 5)
	w.proxy.setDown(false)
	w.equal(c)
	w.once(ann, direct, texts)
}

func sendingReadsNothing(w *world) {
	ann, bob, direct, group := w.pair()
	read := bob.send(direct, 2)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	c.read(direct, read)
	w.hasRead(c, direct, read)
	w.proxy.setDown(true)
	texts := c.send(direct, 2)
	c.send(group, 1)
	bob.send(direct, 20)
	bob.send(group, 4)
	w.proxy.setDown(false)
	w.equal(c)
	w.once(ann, direct, texts)
	for chat, want := range map[string]int64{direct: read, group: 0} {
		if got := ann.state(chat).GetReadSequence(); got != want {
			w.failf("after the messages went out, the user has read up to %d, want %d", got, want)
		}
	}
	if got := bob.state(direct).GetPeerReadSequence(); got != read {
		w.failf("the other person sees messages up to %d as read, want %d", got, read)
	}
}
