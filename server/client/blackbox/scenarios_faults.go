package blackbox

import (
	"fmt"
	"time"
)

func faultScenarios() []Scenario {
	return []Scenario{
		{Name: "lost answers", run: lostAnswers,
			Must: "A message whose answer was lost is stored once, and the messages keep their order."},
		{Name: "repeated requests", run: repeatedRequests,
			Must: "Calls that reach the server twice change nothing that the user sees."},
		{Name: "late answers", run: lateAnswers,
			Must: "An answer that arrives after newer messages does not replace them."},
		{Name: "cut connections", run: cutConnections,
			Must: "Connections that are cut within frames and answers lose and repeat nothing."},
		{Name: "overlapping connections", run: overlappingConnections,
			Must: "A client that reconnects before the server sees the end of its last stream stays connected."},
		{Name: "network switch", Long: true, run: networkSwitch,
			Must: "After a connection that silently stopped, messages go out and appear within 2 minutes."},
		{Name: "server killed", run: serverKilled,
			Must: "A server that is killed and started again while messages are sent loses and repeats none of them."},
		{Name: "server restored", run: serverRestored,
			Must: "After the server was put back to an older copy, the client shows exactly what that store has."},
		{Name: "buffering proxy", run: bufferingProxy,
			Must: "Behind a proxy that holds an answer back until it ends, messages appear within 60 s."},
	}
}

func lostAnswers(w *world) {
	ann, bob, direct, group, c := w.device()
	w.proxy.set(faults{lose: 0.5})
	texts := c.send(direct, 12)
	bob.send(direct, 5)
	others := c.send(group, 3)
	w.sleep(3 * time.Second)
	w.proxy.set(faults{})
	w.equal(c)
	w.once(ann, direct, texts)
	w.once(ann, group, others)
}

func repeatedRequests(w *world) {
	ann, bob, direct, group := w.pair()
	w.proxy.set(faults{twice: 1})
	last := bob.send(direct, 5)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	texts := c.send(direct, 8)
	c.read(direct, last)
	w.until("the server has the read mark", func() string {
		if got := ann.state(direct).GetReadSequence(); got < last {
			return fmt.Sprintf("read: got %d, want %d", got, last)
		}
		return ""
	}, c)
	w.equal(c)
	w.once(ann, direct, texts)
}

func lateAnswers(w *world) {
	ann, bob, direct, group := w.pair()
	w.proxy.set(faults{delay: 1500 * time.Millisecond})
	bob.send(direct, 60)
	c := w.client(ann).opens(direct, group).start()
	w.alongside(bob.chatter(direct, 30, 60*time.Millisecond), bob.chatter(group, 30, 60*time.Millisecond))
	texts := c.send(direct, 3)
	w.proxy.setDown(true)
	bob.send(group, 120)
	w.proxy.setDown(false)
	w.alongside(bob.chatter(group, 30, 60*time.Millisecond))
	w.equal(c)
	w.once(ann, direct, texts)
}

func cutConnections(w *world) {
	ann, bob, direct, group, c := w.device()
	var texts []string
	for range 3 {
		w.proxy.setBudget(func() int { return 1 + int(w.proxy.chance()*6000) })
		texts = append(texts, c.send(direct, 2)...)
		w.alongside(bob.chatter(direct, 30, 40*time.Millisecond), bob.chatter(group, 30, 40*time.Millisecond))
		texts = append(texts, c.send(direct, 2)...)
		w.sleep(time.Second)
		w.proxy.setBudget(nil)
		w.equal(c)
	}
	w.once(ann, direct, texts)
}

func overlappingConnections(w *world) {
	_, bob, direct, group, c := w.device()
	w.proxy.set(faults{linger: 3 * time.Second, delay: 300 * time.Millisecond})
	w.proxy.cut() // streams from now on linger
	for range 5 {
		w.alongside(bob.chatter(direct, 10, 30*time.Millisecond), bob.chatter(group, 10, 30*time.Millisecond))
		w.proxy.cut()
		c.send(group, 1)
	}
	w.equal(c)
	bob.send(direct, 1)
	w.equal(c)
}

func networkSwitch(w *world) {
	ann, bob, direct, group, c := w.device()
	w.proxy.darken()
	texts := c.send(direct, 2)
	bob.send(direct, 3)
	bob.send(group, 3)
	w.within(2*time.Minute, func() { w.equal(c) })
	w.once(ann, direct, texts)
}

func serverKilled(w *world) {
	ann, bob, direct, group, c := w.device()
	var texts []string
	for range 4 {
		w.alongside(bob.chatter(direct, 40, 5*time.Millisecond), bob.chatter(group, 40, 5*time.Millisecond), func() error {
			w.sleepShortly(200 * time.Millisecond)
			w.server.kill()
			return w.server.start(w.ctx)
		})
		texts = append(texts, c.send(direct, 2)...)
		w.server.kill()
		texts = append(texts, c.send(direct, 2)...)
		w.must(w.server.start(w.ctx))
	}
	w.equal(c)
	w.once(ann, direct, texts)
}

func serverRestored(w *world) {
	ann, bob, direct, group := w.pair()
	bob.send(direct, 20)
	c := w.client(ann).opens(direct, group).start()
	w.equal(c)
	w.server.kill()
	w.must(w.server.backUp(w.ctx, "copy"))
	w.must(w.server.start(w.ctx))
	bob.send(direct, 10)
	bob.send(group, 5)
	lost := bob.group("Lost", ann)
	bob.send(lost, 2)
	c.send(group, 3)
	bob.rename(group, "Coffee")
	w.equal(c)
	w.server.kill()
	kept := c.send(direct, 2)
	w.must(w.server.restore(w.ctx, "copy"))
	w.must(w.server.start(w.ctx))
	bob.send(direct, 7) // the same versions become something else
	bob.send(group, 9)
	w.equal(c)
	w.once(ann, direct, kept)
}

func bufferingProxy(w *world) {
	ann, bob, direct, group := w.pair()
	bob.send(direct, 3)
	w.proxy.set(faults{buffer: true})
	c := w.client(ann).opens(direct, group).start()
	w.within(time.Minute, func() { w.equal(c) })
	for range 2 { // without a call of the client, which would show that there is more
		bob.send(direct, 2)
		bob.send(group, 1)
		w.within(time.Minute, func() { w.equal(c) })
	}
	bob.send(direct, 1)
	c.send(direct, 1)
	w.within(time.Minute, func() { w.equal(c) })
}
