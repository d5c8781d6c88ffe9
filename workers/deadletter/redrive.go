package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/consume"
)

// claimFor is how long a dead letter belongs to the call that redrives it. A handler has less
// time.
const (
	claimFor    = 5 * time.Minute
	handlerTime = time.Minute
)

// Rates, in dead letters a second.
const (
	defaultRate = 100
	maxRate     = 10_000
)

// maxFailed ends a redrive: when so many dead letters have failed again, their cause is not
// repaired yet.
const maxFailed = 1_000

// Outcome is what a call did about a dead letter. Its values are those of the operators' API, in
// small letters.
type Outcome string

// The outcomes of a call on a dead letter.
const (
	Done      Outcome = "done"       // redriven or discarded; in a dry run, it would be
	Failed    Outcome = "failed"     // again
	Behind    Outcome = "behind"     // not tried: an earlier dead letter of its key blocks it
	NoHandler Outcome = "no_handler" // not tried: no handler here for its group
	Taken     Outcome = "taken"      // not tried: another call has claimed or handled it
)

// OnOutcome gets the outcome of each dead letter; reason is that of a failure, or the id of the
// dead letter that blocks this one. An error ends the call.
type OnOutcome func(id string, o Outcome, reason string) error

// Redrive says how dead letters are redriven.
type Redrive struct {
	Actor     string                     // the operator, for the audit
	Limit     int                        // dead letters to try; 0: all
	DryRun    bool                       // report what would be done
	Rate      int                        // dead letters a second; 0: defaultRate
	Handlers  map[string]consume.Handler // by group
	OnOutcome OnOutcome                  // may be nil
}

// Discard says how dead letters are discarded.
type Discard struct {
	Actor     string    // the operator, for the audit
	Reason    string    // kept with each dead letter
	Limit     int       // dead letters; 0: all
	DryRun    bool      // report what would be done
	OnOutcome OnOutcome // may be nil
}

// Report sums up what a call did.
type Report struct {
	Matched                                int // dead letters that the filter selects, up to the end of the call
	Done, Failed, Behind, NoHandler, Taken int
	More                                   bool // it ended at its limit, or at maxFailed
}

// add counts an outcome and passes it on.
func (r *Report) add(onOutcome OnOutcome, id string, o Outcome, reason string) error {
	switch o {
	case Done:
		r.Done++
	case Failed:
		r.Failed++
	case Behind:
		r.Behind++
	case NoHandler:
		r.NoHandler++
	case Taken:
		r.Taken++
	}
	if onOutcome == nil {
		return nil
	}
	return onOutcome(id, o, reason)
}

// full reports whether no more dead letters may be tried.
func (r *Report) full(limit int) bool {
	r.More = limit > 0 && r.Done+r.Failed >= limit || r.Failed >= maxFailed
	return r.More
}

// Redrive passes dead letters to the handlers of their groups, one after the other, those of one
// key in the order in which they failed. The order holds over all calls: a dead letter is not
// tried while an earlier one of its key is open, selected by this call or not, or runs in
// another call. A handler sees consume.Redriven(ctx). A dead letter that its handler accepts is
// redriven; one that fails stays open, with the result. The call ends early if ctx does;
// when it is repeated, it continues with the open dead letters. A key that is parked is released
// once none of its dead letters is open.
func (m *Manager) Redrive(ctx context.Context, f Filter, r Redrive) (Report, error) {
	if r.Rate == 0 {
		r.Rate = defaultRate
	}
	if r.Actor == "" || len(r.Actor) > maxActor || r.Rate < 1 || r.Rate > maxRate || r.Limit < 0 {
		return Report{}, fmt.Errorf("%w: an operator's name and a rate of 1 to %d are required", ErrInvalid, maxRate)
	}
	keys, logs, err := m.orderingKeys(ctx, f)
	if err != nil {
		return Report{}, err
	}
	d := &redriver{manager: m, filter: f, how: r, blockedBy: map[string]string{},
		tick: time.NewTicker(time.Second / time.Duration(r.Rate))}
	defer d.tick.Stop()
	// Dead letters that are not selected are read, too: they may block one that is.
	all := Filter{Source: f.Source, Group: f.Group, Topic: declared(f.Topic), Key: f.Key,
		Statuses: append([]Status{Open, Running}, f.Statuses...), orderingKeys: keys, logs: logs}
	err = m.scan(ctx, all, Position{}, func(l *DeadLetter) error {
		return d.next(ctx, l)
	})
	if err == nil && !r.DryRun && !d.report.More {
		d.filter.Statuses = nil // dead letters redriven before are not redriven again
		err = m.release(ctx, f, keys, d.blockedBy, d.next)
	}
	return d.report, err
}

// orderingKey is what order is kept within: a key of a topic, for a group, in whichever
// version of the topic the record was. Messages of topics without a key have no order.
func (l *DeadLetter) orderingKey() string {
	if l.topic != nil && len(l.Record.Key) == 0 {
		return l.ID()
	}
	return orderingKeyIn(l.Source, l.Group, declared(l.Record.Topic), l.Record.Key)
}

func orderingKeyIn(s Source, group, topic string, key []byte) string {
	return string(s) + "\x00" + group + "\x00" + topic + "\x00" + string(key)
}

// maxOrderingKeys bounds what a call remembers to read fewer dead letters.
const maxOrderingKeys = 100_000

// orderingKeys returns the ordering keys of the dead letters that a filter selects, and the logs
// in which they stand. It returns nil, for all, if the filter selects whole keys anyway, or
// so many that it is cheaper to read all dead letters.
func (m *Manager) orderingKeys(ctx context.Context, f Filter) (keys, logs map[string]bool, err error) {
	if f.wholeKeys() {
		return nil, nil, f.validate()
	}
	keys, logs = map[string]bool{}, map[string]bool{}
	err = m.scan(ctx, f, Position{}, func(l *DeadLetter) error {
		logs[l.position.Log] = true
		if keys[l.orderingKey()] = true; len(keys) > maxOrderingKeys {
			return errStop
		}
		return nil
	})
	if len(keys) > maxOrderingKeys {
		keys, logs = nil, nil
	}
	return keys, logs, err
}

// wholeKeys reports whether a filter selects all dead letters of a key, or none.
func (f *Filter) wholeKeys() bool {
	return len(f.IDs) == 0 && f.Class == 0 && f.Reason == "" && f.After.IsZero() && f.Before.IsZero()
}

// redriver is one call of Redrive.
type redriver struct {
	manager   *Manager
	filter    Filter
	how       Redrive
	report    Report
	blockedBy map[string]string // ids of dead letters, by ordering key
	tick      *time.Ticker
}

// next handles a dead letter, selected or not, in the order of the topic.
func (d *redriver) next(ctx context.Context, l *DeadLetter) error {
	selected := d.filter.matches(l) && (d.filter.matchesStatus(l.Status) || l.Status == Running)
	if !selected {
		d.block(l)
		return nil
	}
	if d.report.full(d.how.Limit) {
		return errStop
	}
	d.report.Matched++
	outcome, reason, err := d.try(ctx, l)
	if err != nil {
		return err
	}
	if outcome != Done && outcome != NoHandler {
		d.block(l)
	}
	return d.report.add(d.how.OnOutcome, l.ID(), outcome, reason)
}

// block blocks the later dead letters of a dead letter's key, unless the dead letter is done
// with.
func (d *redriver) block(l *DeadLetter) {
	if key := l.orderingKey(); l.Status != Redriven && l.Status != Discarded && d.blockedBy[key] == "" {
		d.blockedBy[key] = l.ID()
	}
}

// try redrives a dead letter if nothing blocks it. The error ends the call.
func (d *redriver) try(ctx context.Context, l *DeadLetter) (o Outcome, reason string, err error) {
	handle, err := d.handler(ctx, l)
	if err != nil {
		return "", "", err
	}
	blockedBy := d.blockedBy[l.orderingKey()]
	switch {
	case handle == nil:
		return NoHandler, "", nil
	case l.Status != Open:
		return Taken, "", nil
	case blockedBy != "":
		return Behind, blockedBy, nil
	case l.Omitted > 0:
		return Failed, fmt.Sprintf("the record had %d bytes too many for its dead letter: only its position is known",
			l.Omitted), nil
	case d.how.DryRun:
		return Done, "", nil
	}
	select {
	case <-ctx.Done():
		return "", "", ctx.Err()
	case <-d.tick.C:
	}
	reason, err = d.manager.redrive(ctx, l, handle, d.how.Actor)
	var lost *store.ConditionError
	switch {
	case errors.As(err, &lost): // another call claimed it: its result is not known here
		return Taken, "", nil
	case err != nil:
		return "", "", err
	case reason != "":
		return Failed, reason, nil
	}
	return Done, "", nil
}

// handler returns the handler that takes a dead letter again, nil if there is none.
func (d *redriver) handler(ctx context.Context, l *DeadLetter) (consume.Handler, error) {
	if l.topic == nil {
		return d.how.Handlers[l.Group], nil
	}
	if taken, err := l.topic.of.Taken(ctx, l.topic.DeadLetter); err != nil || !taken {
		return nil, err
	}
	return l.topic.redrive, nil
}

// redrive passes one dead letter to its handler, and returns the reason if it failed again.
func (m *Manager) redrive(
	ctx context.Context, l *DeadLetter, handle consume.Handler, actor string,
) (reason string, err error) {
	if err := m.setStatus(ctx, l, Running, actor, ""); err != nil {
		return "", err
	}
	run, cancel := context.WithTimeout(consume.WithRedrive(ctx), handlerTime)
	defer cancel()
	failure := consume.Call(run, handle, l.Record)
	// The result is written even if the caller does not wait for it any more.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), handlerTime)
	defer cancel()
	if failure != nil && consume.ClassOf(failure) != consume.Ignored {
		reason = consume.Reason(failure)
		err = m.setStatus(end, l, failed, actor, reason)
	} else {
		err = m.setStatus(end, l, Redriven, actor, "")
	}
	m.cfg.Logger.Info("deadletter: redriven", "id", l.ID(), "by", actor, "failure", reason)
	return reason, err
}

// Discard gives dead letters up, for a reason that is kept with them. A key that is parked is
// released once none of its dead letters is open.
func (m *Manager) Discard(ctx context.Context, f Filter, d Discard) (Report, error) {
	if d.Actor == "" || len(d.Actor) > maxActor || d.Reason == "" || len(d.Reason) > maxResult || d.Limit < 0 {
		return Report{}, fmt.Errorf("%w: an operator's name and a reason are required", ErrInvalid)
	}
	var report Report
	keys := map[string]bool{}
	err := m.scan(ctx, f, Position{}, func(l *DeadLetter) error {
		keys[l.orderingKey()] = true
		if report.full(d.Limit) {
			return errStop
		}
		report.Matched++
		outcome, err := m.discard(ctx, l, d)
		if err != nil {
			return err
		}
		return report.add(d.OnOutcome, l.ID(), outcome, "")
	})
	if err == nil && !d.DryRun {
		if f.wholeKeys() { // also those whose dead letters an earlier call has discarded
			keys = nil
		}
		err = m.release(ctx, f, keys, nil, nil)
	}
	return report, err
}

// discard gives one dead letter up.
func (m *Manager) discard(ctx context.Context, l *DeadLetter, d Discard) (Outcome, error) {
	if l.Status != Open {
		return Taken, nil
	}
	if d.DryRun {
		return Done, nil
	}
	err := m.setStatus(ctx, l, Discarded, d.Actor, d.Reason)
	if err == nil && l.topic != nil {
		err = l.topic.of.Discard(ctx, l.topic.DeadLetter)
	}
	if errors.Is(err, topic.ErrDeadLetterGone) {
		return Taken, nil
	}
	var lost *store.ConditionError
	switch {
	case errors.As(err, &lost):
		return Taken, nil
	case err != nil:
		return "", err
	}
	m.cfg.Logger.Info("deadletter: discarded", "id", l.ID(), "by", d.Actor, "why", d.Reason)
	return Done, nil
}
