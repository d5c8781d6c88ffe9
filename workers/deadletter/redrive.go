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
	Behind    Result = "behind"     // not tried, because a letter of its key before it failed
	NoHandler Result = "no handler" // not tried: nobody here handles its group
	Taken     Result = "taken"      // not tried: somebody else had it
)

// Each is told of each letter; reason is that of a failure. Its error ends the call.
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
// of one key in the order in which they died: behind one that fails the key's others
// stay. A handler sees consume.Redriven(ctx). A letter that its handler took is done
// with; one that failed stays open, with the result. It ends early if ctx does; a
// repetition goes on with what is open.
func (o *Office) Redrive(ctx context.Context, f Filter, r Redrive) (Report, error) {
	if r.Rate == 0 {
		r.Rate = DefaultRate
	}
	if r.By == "" || len(r.By) > MaxWho || r.Rate < 1 || r.Rate > MaxRate || r.Limit < 0 {
		return Report{}, fmt.Errorf("%w: who asks for it, and a rate of 1 to %d, are required", ErrInvalid, MaxRate)
	}
	var rep Report
	stopped := map[string]bool{}
	tick := time.NewTicker(time.Second / time.Duration(r.Rate))
	defer tick.Stop()
	err := o.walk(ctx, f, Place{}, func(l *Letter) error {
		if rep.full(r.Limit) {
			return errEnough
		}
		rep.Matched++
		lane := l.Group + "\x00" + l.Record.Topic + "\x00" + string(l.Record.Key)
		handle := r.Handlers[l.Group]
		switch {
		case handle == nil:
			return rep.add(r.Each, l.ID, NoHandler, "")
		case l.Status != Open:
			return rep.add(r.Each, l.ID, Taken, "")
		case stopped[lane]:
			return rep.add(r.Each, l.ID, Behind, "")
		case l.Omitted > 0:
			stopped[lane] = true
			return rep.add(r.Each, l.ID, Failed, fmt.Sprintf("the record had %d bytes too many for its dead letter: only its position is known", l.Omitted))
		case r.DryRun:
			return rep.add(r.Each, l.ID, Done, "")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		reason, err := o.drive(ctx, l, handle, r.By)
		var failed *store.ConditionError
		switch {
		case errors.As(err, &failed):
			stopped[lane] = true // we cannot tell how it goes for them
			return rep.add(r.Each, l.ID, Taken, "")
		case err != nil:
			return err
		case reason != "":
			stopped[lane] = true
			return rep.add(r.Each, l.ID, Failed, reason)
		default:
			return rep.add(r.Each, l.ID, Done, "")
		}
	})
	return rep, err
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
