package explorer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// cause is what the client of an op sends with its request: every other one has a trace.
func (o *op) cause() event.Cause {
	c := event.Cause{Causation: "r" + strconv.Itoa(o.n)}
	if o.n%2 == 1 {
		c.Trace = fmt.Sprintf("%032x", o.n)
	}
	return c
}

func causeOf(e event.Event) event.Cause {
	md := e.GetMetadata()
	return event.Cause{Trace: md.GetTraceId(), Correlation: md.GetCorrelationId(), Causation: md.GetCausationId()}
}

// w3c is a trace-id.
var w3c = regexp.MustCompile(`^[0-9a-f]{32}$`)

// caused holds the causes of a plan's events against the rule that the events of a command have
// one. What makes the pending members of a group members belongs to the command that created
// the group, whichever op carries it out; all else belongs to the op. The ops that a world begins
// with (no attempts) send no cause.
func (w *world) caused(o *op, before, r *room, events []event.Event) {
	if len(events) == 0 {
		return
	}
	want := causeOf(events[0])
	if _, ok := events[0].(*eventv1.ChatCreated); ok {
		r.cause = want
	}
	added, ok := events[0].(*eventv1.MembershipChanged)
	creation := ok && o.kind != changeRole && before.pending.has(index(added.GetUserId())) &&
		added.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED
	sent := o.cause()
	switch {
	case creation:
		want = r.cause
	case o.attempts == 0 || want.Causation == sent.Causation && (want.Trace == sent.Trace || sent.Trace == ""):
	default:
		w.fail("%v: the cause of an event is %+v, the client's is %+v", o, want, sent)
	}
	for _, e := range events {
		if got := causeOf(e); got != want || got.Correlation == "" || !w3c.MatchString(got.Trace) {
			w.fail("%v: the cause of event %d is %+v, that of the command %+v", o, e.GetMetadata().GetVersion(), got, want)
		}
	}
}

// selfCaused is a plan whose last event has a correlation of its own.
func selfCaused(p store.Plan) store.Plan {
	return rewritten(p, func(wr *store.Write) {
		row, err := table.EventFrom(store.Row{Key: wr.Key, Item: wr.Item})
		if err != nil {
			return
		}
		e, err := event.Unmarshal(row.Type, row.Payload)
		if err != nil {
			return
		}
		md := e.GetMetadata()
		md.CorrelationId = md.GetEventId()
		if row.Payload, err = event.Marshal(e); err == nil {
			wr.Item = row.Item()
		}
	}, store.Events)
}

// untraced is a plan whose pending members lack the trace of their creation.
func untraced(p store.Plan) store.Plan {
	return rewritten(p, func(wr *store.Write) {
		row := table.PendingFrom(wr.Key.PK, wr.Item)
		row.Trace = ""
		wr.Item = row.Item()
	}, store.PendingMembers)
}

// rewritten is a plan with other rows put to a table.
func rewritten(p store.Plan, change func(*store.Write), in store.Table) store.Plan {
	p.Writes = slices.Clone(p.Writes)
	for i := range p.Writes {
		if p.Writes[i].Key.Table == in && p.Writes[i].Op == store.OpPut {
			change(&p.Writes[i])
		}
	}
	return p
}
