package modeltest

import (
	"slices"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// settings are those that a group may have had between two moments.
func (g *group) settings(from, to stamp) []*topicv1.SubscriptionConfig {
	list := []*topicv1.SubscriptionConfig{g.config}
	for _, c := range g.controls {
		switch {
		case c.config == nil || to.before(c.call):
		case c.ret.before(from):
			list = []*topicv1.SubscriptionConfig{c.config}
		default:
			list = append(list, c.config)
		}
	}
	return list
}

// least is the shortest time for which a member has a message for certain. The server ends leases that
// are as good as over together, so a message may come again sooner than by its lease.
func (a *audit) least(d *delivery) time.Duration {
	least := longLease
	for _, c := range a.g.settings(d.from, d.at) {
		least = min(least, c.GetRetry().GetLease().AsDuration())
	}
	return least - least/32
}

// attemptsOf are how many attempts settings give a message, at least and at most.
func attemptsOf(list []*topicv1.SubscriptionConfig) (least, limit int) {
	least = int(list[0].GetRetry().GetMaxAttempts())
	for _, c := range list {
		least, limit = min(least, int(c.GetRetry().GetMaxAttempts())), max(limit, int(c.GetRetry().GetMaxAttempts()))
	}
	return least, limit
}

// lets reports whether a filter that the group may have had lets a message through. A new filter applies
// to what was not delivered yet. A response that was lost in a kill may have been a delivery.
func (a *audit) lets(p *publication, d *delivery, again bool) bool {
	from := d.from
	if again || a.outage(p.call, d.at) {
		from = p.call
	}
	return slices.ContainsFunc(a.g.settings(from, d.at), func(c *topicv1.SubscriptionConfig) bool {
		return passes(c, p.message)
	})
}

// ordered reports whether the group had the order of keys, for certain, when a message was delivered.
func (a *audit) ordered(d *delivery) bool {
	return !slices.ContainsFunc(a.g.settings(d.from, d.at), func(c *topicv1.SubscriptionConfig) bool { return !keyed(c) })
}

// bounds holds that members have no more messages together than max_in_flight. A lower bound takes
// nothing from them, but lets nothing come until they have less.
func (a *audit) bounds() {
	var all []*delivery
	for _, list := range a.g.delivered {
		all = append(all, list...)
	}
	inOrder(all)
	for i, d := range all {
		limit := int32(0)
		for _, c := range a.g.settings(d.from, d.at) {
			if c.GetMaxInFlight() == 0 {
				limit = 0
				break
			}
			limit = max(limit, c.GetMaxInFlight())
		}
		if limit == 0 || a.released(d, d.at) {
			continue
		}
		held := map[position]bool{}
		for j := i; j >= 0 && d.at.at.Sub(all[j].at.at) < longLease; j-- {
			if a.holds(all[j], d.at) {
				held[all[j].position] = true
			}
		}
		if len(held) > int(limit) {
			a.find("bound: members of %s of %s have %d messages, at most %d", a.g.name, a.t.name, len(held), limit)
		}
	}
}

// unasked holds that nothing from before the group comes before it asks for a backfill.
func (a *audit) unasked() {
	for at, list := range a.g.delivered {
		p := a.at[at]
		if p != nil && p.ret.before(a.g.born.call) && list[0].at.before(a.asked[0].call) {
			a.find("backfill: %s of %s gets %v before it asks", a.g.name, a.t.name, at)
		}
	}
}
