package modeltest

import (
	"cmp"
	"fmt"
	"slices"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

// checkDeadLetters holds dead letters against their messages, and counts them by group and
// message.
func (w *World) checkDeadLetters(t *topicState, at map[position]*publication) map[string]map[position]int {
	all := map[string]map[position]int{}
	for _, l := range w.deadLetters {
		if l.topic != t {
			continue
		}
		var of position
		if _, err := fmt.Sscanf(l.of, "%d-%d", &of.partition, &of.position); err != nil || at[of] == nil ||
			!same(at[of].message, l.message) {
			w.find("letter: %s of group %s is %.60s", l.of, l.group, l.message.GetPayload())
			continue
		}
		if all[l.group] == nil {
			all[l.group] = map[position]int{}
		}
		all[l.group][of]++
	}
	for _, g := range w.tenures {
		again := slices.ContainsFunc(g.controls, func(c *control) bool { return c.kind == seek || c.kind == cancel })
		if g.topic != t || again || g.created.GetGeneration() > 1 {
			continue
		}
		for of, n := range all[g.name] {
			if n > 1 {
				w.find("letter: %v of group %s has %d letters%s", of, g.name, n, w.story(g, of))
			}
			highest := 0
			for _, d := range g.delivered[of] {
				highest = max(highest, d.attempt)
			}
			least, _ := attemptsOf(g.settings(stamp{}, stamp{seq: never}))
			if w.Simulated && highest < least {
				w.find("letter: %v of group %s has a letter after %d attempts", of, g.name, highest)
			}
		}
	}
	return all
}

// deadLetterCalls holds what operators did about the group's dead letters against what became of them: a dead
// letter is put back once, if it was redriven and not discarded before, and it is listed with what was done about
// it.
func (a *audit) deadLetterCalls() {
	if !a.g.buried {
		return
	}
	listed := map[string][]*opsv1.DeadLetter{}
	for _, l := range a.g.statuses {
		listed[l.GetId()] = append(listed[l.GetId()], l)
	}
	var backs []*deadLetter
	for _, l := range a.World.deadLetters {
		if l.topic != a.t || l.group != a.g.name {
			continue
		}
		if len(listed[l.id()]) != 1 {
			a.find("letters: %s of %s is listed %d times", l.id(), a.g.name, len(listed[l.id()]))
			continue
		}
		a.deadLetterCall(l, listed[l.id()][0])
		if len(l.backs) == 1 && l.message.GetKey() != "" {
			backs = append(backs, l)
		}
	}
	a.backsInOrder(backs)
}

// deadLetterCall is deadLetterCalls of one dead letter.
func (a *audit) deadLetterCall(l *deadLetter, listed *opsv1.DeadLetter) {
	var put, discarded *handling // those that were answered as done
	may, open, tries := false, true, int32(0)
	for _, h := range a.g.handled {
		if h.id != l.id() || h.outcome == refused {
			continue
		}
		open = false
		if h.redrive {
			tries++
		}
		if (put != nil && put.ret.before(h.call) || discarded != nil && discarded.ret.before(h.call)) && h.outcome == done {
			a.find("letters: %s of %s is handled twice", l.id(), a.g.name)
		}
		may = may || h.may() && (discarded == nil || !discarded.ret.before(h.call))
		switch {
		case h.outcome != done:
		case h.redrive:
			put = h
		default:
			discarded = h
		}
	}
	switch n := len(l.backs); {
	case n > 1:
		a.find("redriven: %s of %s is put back %d times", l.id(), a.g.name, n)
	case n == 1 && !may:
		a.find("redriven: %s of %s is put back, and should not be", l.id(), a.g.name)
	case n == 0 && put != nil:
		a.find("redriven: %s of %s is not put back", l.id(), a.g.name)
	}
	ok, s := true, listed.GetStatus()
	switch {
	case put != nil:
		ok = s == opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_REDRIVEN
	case discarded != nil:
		ok = s == opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_DISCARDED
	case open:
		ok = s == opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_OPEN
	case s == opsv1.DeadLetterStatus_DEAD_LETTER_STATUS_REDRIVEN:
		ok = len(l.backs) == 1
	}
	if !ok || listed.GetRedrives() > tries || put != nil && listed.GetRedrives() < 1 ||
		position.String(position{listed.GetPartition(), listed.GetOffset()}) != l.of {
		a.find("letters: %s of %s is listed as %v", l.id(), a.g.name, listed)
	}
}

// backsInOrder holds that dead letters of one key go back in the order in which they failed.
func (a *audit) backsInOrder(list []*deadLetter) {
	slices.SortFunc(list, func(x, y *deadLetter) int { return cmp.Compare(x.position.position, y.position.position) })
	last := map[string]*deadLetter{}
	for _, l := range list {
		was := last[l.message.GetKey()]
		if was != nil && was.position.partition == l.position.partition &&
			l.backs[0].position.position < was.backs[0].position.position {
			a.find("redriven order: %s of %s is put back at %v, behind %s at %v", l.id(), a.g.name, l.backs[0].position,
				was.id(), was.backs[0].position)
		}
		last[l.message.GetKey()] = l
	}
}
