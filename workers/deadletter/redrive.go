package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/consume"
)

// claimFor is how long a letter belongs to who began to drive it again. A handler
// gets less.
const (
	claimFor    = 5 * time.Minute
	handlerTime = time.Minute
)

// Rates, in letters a second.
const (
	DefaultRate = 100
	MaxRate     = 10_000
)

// MaxFailed ends a redrive: when so many letters have failed again, what made them is
// not repaired yet.
const MaxFailed = 1_000

// Result is what was done about a letter.
type Result string

// What can be done about a letter.
const (
	Done      Result = "done"       // redriven or discarded; in a dry run, it would be
	Failed    Result = "failed"     // again
	Behind    Result = "behind"     // not tried: an earlier letter of its key is not done with
	NoHandler Result = "no handler" // not tried: nobody here handles its group
	Taken     Result = "taken"      // not tried: somebody else had it
)

// Each is told of each letter; reason is that of a failure, or the id of the letter that
// another one is behind. Its error ends the call.
type Each func(id string, r Result, reason string) error

// Redrive says how letters are driven again.
type Redrive struct {
	By       string                     // who asks for it; for the audit
	Limit    int                        // letters to try; 0: all
	DryRun   bool                       // tell what would be done
	Rate     int                        // letters a second; 0: DefaultRate
	Handlers map[string]consume.Handler // by group
	Each     Each                       // may be nil
}

// Discard says how letters are given up.
type Discard struct {
	By     string // who asks for it; for the audit
	Reason string // kept with each letter
	Limit  int    // letters; 0: all
	DryRun bool   // tell what would be done
	Each   Each   // may be nil
}

// Report tells what was done.
type Report struct {
	Matched                                int // letters that the filter chose and that were looked at
	Done, Failed, Behind, NoHandler, Taken int
	More                                   bool // it ended at its limit, or at MaxFailed
}

// add counts a result and tells of it.
func (r *Report) add(each Each, id string, what Result, reason string) error {
	switch what {
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
	if each == nil {
		return nil
	}
	return each(id, what, reason)
}

// full reports whether no more letters may be tried.
func (r *Report) full(limit int) bool {
	r.More = limit > 0 && r.Done+r.Failed >= limit || r.Failed >= MaxFailed
	return r.More
}

// Redrive hands letters to the handlers of their groups, one after the other, those
// of one key in the order in which they died, whoever asks for them: a letter is not
// tried while an earlier one of its key is open, chosen by this call or not, or runs in
// another call. A handler sees consume.Redriven(ctx). A letter that its handler took is
// done with; one that failed stays open, with the result. It ends early if ctx does; a
// repetition goes on with what is open.
func (o *Office) Redrive(ctx context.Context, f Filter, r Redrive) (Report, error) {
	if r.Rate == 0 {
		r.Rate = DefaultRate
	}
	if r.By == "" || len(r.By) > MaxWho || r.Rate < 1 || r.Rate > MaxRate || r.Limit < 0 {
		return Report{}, fmt.Errorf("%w: who asks for it, and a rate of 1 to %d, are required", ErrInvalid, MaxRate)
	}
	lanes, err := o.lanes(ctx, f)
	if err != nil {
		return Report{}, err
	}
	d := &driver{office: o, filter: f, how: r, blocked: map[string]string{}, tick: time.NewTicker(time.Second / time.Duration(r.Rate))}
	defer d.tick.Stop()
	// What is not chosen is looked at, too: it may stand before something that is.
	all := Filter{Group: f.Group, Topic: declared(f.Topic), Key: f.Key, Statuses: append([]Status{Open, Running}, f.Statuses...), lanes: lanes}
	err = o.walk(ctx, all, Place{}, func(l *Letter) error {
		return d.next(ctx, l)
	})
	return d.report, err
}

// maxLanes bounds what a call remembers of keys that it may leave alone.
const maxLanes = 100_000

// lanes returns the lanes of the letters that a filter chooses, or nil for all lanes: if
// the filter chooses whole lanes anyway, or so many that it is cheaper to look at all.
func (o *Office) lanes(ctx context.Context, f Filter) (map[string]bool, error) {
	if len(f.IDs) == 0 && f.Class == "" && f.Reason == "" && f.After.IsZero() && f.Before.IsZero() {
		return nil, f.validate()
	}
	lanes := map[string]bool{}
	err := o.walk(ctx, f, Place{}, func(l *Letter) error {
		if lanes[l.lane()] = true; len(lanes) > maxLanes {
			return errEnough
		}
		return nil
	})
	if len(lanes) > maxLanes {
		lanes = nil
	}
	return lanes, err
}

// lane is what order is kept within: a key of a topic, for a group, whichever version of
// the topic had the record.
func (l *Letter) lane() string {
	return l.Group + "\x00" + declared(l.Record.Topic) + "\x00" + string(l.Record.Key)
}

// driver is one call of Redrive.
type driver struct {
	office  *Office
	filter  Filter
	how     Redrive
	report  Report
	blocked map[string]string // lanes, and the letter that the others are behind
	tick    *time.Ticker
}

// next handles a letter of a lane, chosen or not, in the order of the topic.
func (d *driver) next(ctx context.Context, l *Letter) error {
	chosen := d.filter.matches(l) && (d.filter.wants(l.Status) || l.Status == Running)
	if !chosen {
		d.block(l)
		return nil
	}
	if d.report.full(d.how.Limit) {
		return errEnough
	}
	d.report.Matched++
	result, reason, err := d.try(ctx, l)
	if err != nil {
		return err
	}
	if result != Done && result != NoHandler {
		d.block(l)
	}
	return d.report.add(d.how.Each, l.ID, result, reason)
}

// block keeps what comes behind a letter, unless that is done with.
func (d *driver) block(l *Letter) {
	if lane := l.lane(); l.Status != Redriven && l.Status != Discarded && d.blocked[lane] == "" {
		d.blocked[lane] = l.ID
	}
}

// try drives a letter if nothing stands before it. The error ends the call.
func (d *driver) try(ctx context.Context, l *Letter) (result Result, reason string, err error) {
	handle := d.how.Handlers[l.Group]
	first := d.blocked[l.lane()]
	switch {
	case handle == nil:
		return NoHandler, "", nil
	case l.Status != Open:
		return Taken, "", nil
	case first != "":
		return Behind, first, nil
	case l.Omitted > 0:
		return Failed, fmt.Sprintf("the record had %d bytes too many for its dead letter: only its position is known", l.Omitted), nil
	case d.how.DryRun:
		return Done, "", nil
	}
	select {
	case <-ctx.Done():
		return "", "", ctx.Err()
	case <-d.tick.C:
	}
	reason, err = d.office.drive(ctx, l, handle, d.how.By)
	var failed *store.ConditionError
	switch {
	case errors.As(err, &failed): // we cannot tell how it goes for those behind it
		return Taken, "", nil
	case err != nil:
		return "", "", err
	case reason != "":
		return Failed, reason, nil
	}
	return Done, "", nil
}

// drive drives one letter, and returns the reason if it failed again.
func (o *Office) drive(ctx context.Context, l *Letter, handle consume.Handler, by string) (reason string, err error) {
	if err := o.note(ctx, l, Running, by, ""); err != nil {
		return "", err
	}
	run, cancel := context.WithTimeout(consume.WithRedrive(ctx), handlerTime)
	defer cancel()
	failure := consume.Call(run, handle, l.Record)
	// What became of it is written, also if nobody waits for it any more.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), handlerTime)
	defer cancel()
	if failure != nil {
		reason = consume.Reason(failure)
		err = o.note(end, l, failed, by, reason)
	} else {
		err = o.note(end, l, Redriven, by, "")
	}
	o.cfg.Logger.Info("deadletter: driven again", "id", l.ID, "by", by, "failure", reason)
	return reason, err
}

// Discard gives letters up, for a reason that is kept with them.
func (o *Office) Discard(ctx context.Context, f Filter, d Discard) (Report, error) {
	if d.By == "" || len(d.By) > MaxWho || d.Reason == "" || len(d.Reason) > MaxResult || d.Limit < 0 {
		return Report{}, fmt.Errorf("%w: who discards them, and why, are required", ErrInvalid)
	}
	var rep Report
	err := o.walk(ctx, f, Place{}, func(l *Letter) error {
		if rep.full(d.Limit) {
			return errEnough
		}
		rep.Matched++
		if l.Status != Open {
			return rep.add(d.Each, l.ID, Taken, "")
		}
		if d.DryRun {
			return rep.add(d.Each, l.ID, Done, "")
		}
		err := o.note(ctx, l, Discarded, d.By, d.Reason)
		var failed *store.ConditionError
		switch {
		case errors.As(err, &failed):
			return rep.add(d.Each, l.ID, Taken, "")
		case err != nil:
			return err
		}
		o.cfg.Logger.Info("deadletter: discarded", "id", l.ID, "by", d.By, "why", d.Reason)
		return rep.add(d.Each, l.ID, Done, "")
	})
	return rep, err
}
