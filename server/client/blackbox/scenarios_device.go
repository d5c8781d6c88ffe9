package blackbox

import (
	"errors"
	"time"
)

func deviceScenarios() []Scenario {
	clock, keep := []string{abilityClock}, []string{abilityKeep}
	return []Scenario{
		{Name: "client killed with an outbox", Needs: keep, run: killedWithOutbox,
			Must: "Messages that were not sent when the client was killed go out after its start, each of them once."},
		{Name: "client killed again and again", Needs: keep, run: killedAgain,
			Must: "A client that is killed while it sends and receives loses and repeats nothing."},
		{Name: "short tokens", run: shortTokens,
			Must: "Access tokens that are valid for 20 s are renewed, and messages go on."},
		{Name: "clock moved", Needs: clock, run: clockMoved,
			Must: "A clock that is moved an hour ahead and back disturbs neither messages nor the outbox."},
		{Name: "clock a week ahead", Needs: clock, run: clockAhead,
			Must: "A message that is written while the clock is a week ahead goes out after the clock was corrected."},
		{Name: "clock a week ahead, restarted", Needs: []string{abilityClock, abilityKeep}, run: clockRestarted,
			Must: "A message that was stored while the clock was a week ahead goes out after a restart with the right time."},
		{Name: "frozen client", Long: true, run: frozen,
			Must: "A client whose process did not run for 70 s shows what was sent meanwhile."},
	}
}

func killedWithOutbox(w *world) {
	ann, bob, direct, group, c := w.device()
	w.proxy.setDown(true)
	texts := c.send(direct, 5)
	others := c.send(group, 2)
	c.kill()
	bob.send(direct, 3)
	w.proxy.setDown(false)
	c.start()
	w.equal(c)
	w.once(ann, direct, texts)
	w.once(ann, group, others)
}

func killedAgain(w *world) {
	ann, bob, direct, group, c := w.device()
	var texts []string
	for range 6 {
		w.alongside(bob.chatter(direct, 10, time.Millisecond), bob.chatter(group, 10, time.Millisecond))
		texts = append(texts, c.send(direct, 3)...)
		w.sleepShortly(100 * time.Millisecond)
		c.kill()
		bob.send(group, 3)
		c.start()
	}
	w.equal(c)
	w.once(ann, direct, texts)
}

func shortTokens(w *world) {
	ann, bob, direct, group := w.pair()
	c := w.client(ann).opens(direct, group)
	c.tokens = 20 * time.Second
	c.start()
	w.equal(c)
	var texts []string
	for range 7 {
		bob.send(direct, 2)
		texts = append(texts, c.send(group, 1)...)
		w.sleep(8 * time.Second)
		w.equal(c)
	}
	w.once(ann, group, texts)
	// The server accepts a token for 30 s longer than it is valid.
	if n := c.wanted(); n < 1 || n > 30 {
		w.failf("the client asked %d times for a token in 56 s, want 1 to 30 times", n)
	}
}

func clockMoved(w *world) {
	ann, bob, direct, group, c := w.device()
	var texts []string
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		c.setClock(ahead)
		bob.send(direct, 2)
		texts = append(texts, c.send(direct, 1)...)
		w.equal(c)
		w.proxy.setDown(true)
		texts = append(texts, c.send(direct, 1)...)
		bob.send(group, 2)
		w.proxy.setDown(false)
		w.equal(c)
	}
	w.once(ann, direct, texts)
}

// week is longer than the server remembers the id of a message.
const week = 8 * 24 * time.Hour

// writtenAhead has a client write two messages while its clock is a week ahead and it has no connection.
func writtenAhead(w *world) (ann, bob *user, direct string, c *child, texts []string) {
	ann, bob, direct, group := w.pair()
	c = w.client(ann).opens(direct, group)
	c.wall = week
	c.start()
	w.equal(c)
	w.proxy.setDown(true)
	return ann, bob, direct, c, c.send(direct, 2)
}

func clockAhead(w *world) {
	ann, bob, direct, c, texts := writtenAhead(w)
	c.setClock(0)
	bob.send(direct, 2)
	w.proxy.setDown(false)
	w.equal(c)
	w.once(ann, direct, texts)
}

func clockRestarted(w *world) {
	ann, bob, direct, c, texts := writtenAhead(w)
	c.kill()
	c.wall = 0
	bob.send(direct, 2)
	w.proxy.setDown(false)
	c.start()
	w.equal(c)
	w.once(ann, direct, texts)
}

func frozen(w *world) {
	_, bob, direct, group, c := w.device()
	err := freeze(c.p.cmd, true)
	if errors.Is(err, errors.ErrUnsupported) {
		w.end(lackError("be frozen on this system"))
	}
	w.must(err)
	bob.send(direct, 30)
	bob.send(group, 3)
	w.sleep(70 * time.Second)
	bob.send(direct, 3)
	w.must(freeze(c.p.cmd, false))
	w.equal(c)
	c.send(direct, 1)
	w.equal(c)
}
