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

// Redrive says how letters are driven again.
type Redrive struct {
	By       string                     // who asks for it; for the audit
	Limit    int                        // letters; 0: MaxLetters
	DryRun   bool                       // tell what would be done
	Rate     int                        // letters a second; 0: DefaultRate
	Handlers map[string]consume.Handler // by group
}

// Report tells what was done.
type Report struct {
	Matched   int // letters that the filter chose
	Done      int // redriven, discarded, or, in a dry run, would be
	Failed    []Failure
	Behind    int // not tried, because a letter of their key before them failed
	NoHandler int // of a group that nobody handles here
	Taken     int // somebody else had them
	More      bool
}

// Failure is a letter that failed again.
type Failure struct{ ID, Reason string }

// Redrive hands letters to the handlers of their groups, one after the other, those
// of one key in the order in which they died: behind one that fails the key's others
// stay. A handler sees consume.Redriven(ctx). A letter that its handler took is done
// with; one that failed stays open, with the result. It ends early if ctx does.
func (o *Office) Redrive(ctx context.Context, f Filter, r Redrive) (Report, error) {
	if r.Limit == 0 {
		r.Limit = MaxLetters
	}
	if r.Rate == 0 {
		r.Rate = DefaultRate
	}
	if r.By == "" || len(r.By) > maxWho || r.Rate < 1 || r.Rate > MaxRate {
		return Report{}, fmt.Errorf("%w: who asks for it, and a rate of 1 to %d, are required", ErrInvalid, MaxRate)
	}
	list, more, err := o.List(ctx, f, r.Limit)
	if err != nil {
		return Report{}, err
	}
	rep := Report{Matched: len(list), More: more}
	stopped := map[string]bool{}
	tick := time.NewTicker(time.Second / time.Duration(r.Rate))
	defer tick.Stop()
	for i := range list {
		l := &list[i]
		lane := l.Group + "\x00" + l.Record.Topic + "\x00" + string(l.Record.Key)
		handle := r.Handlers[l.Group]
		switch {
		case handle == nil:
			rep.NoHandler++
			continue
		case l.Status != Open:
			rep.Taken++
			continue
		case stopped[lane]:
			rep.Behind++
			continue
		case r.DryRun:
			rep.Done++
			continue
		}
		select {
		case <-ctx.Done():
			return rep, ctx.Err()
		case <-tick.C:
		}
		reason, err := o.drive(ctx, l, handle, r.By)
		var failed *store.ConditionError
		switch {
		case errors.As(err, &failed):
			rep.Taken++
			stopped[lane] = true // we cannot tell how it goes for them
		case err != nil:
			return rep, err
		case reason != "":
			rep.Failed = append(rep.Failed, Failure{l.ID, reason})
			stopped[lane] = true
		default:
			rep.Done++
		}
	}
	return rep, nil
}

// drive drives one letter, and returns the reason if it failed again.
func (o *Office) drive(ctx context.Context, l *Letter, handle consume.Handler, by string) (reason string, err error) {
	if err := o.note(ctx, l, Running, by, ""); err != nil {
		return "", err
	}
	run, cancel := context.WithTimeout(consume.WithRedrive(ctx), handlerTime)
	defer cancel()
	failure := consume.Call(run, handle, l.Record)
	end := context.WithoutCancel(ctx)
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
func (o *Office) Discard(ctx context.Context, f Filter, by, why string, dryRun bool) (Report, error) {
	if by == "" || len(by) > maxWho || why == "" || len(why) > maxResult {
		return Report{}, fmt.Errorf("%w: who discards them, and why, are required", ErrInvalid)
	}
	list, more, err := o.List(ctx, f, MaxLetters)
	if err != nil {
		return Report{}, err
	}
	rep := Report{Matched: len(list), More: more}
	for i := range list {
		l := &list[i]
		if l.Status != Open {
			rep.Taken++
			continue
		}
		if !dryRun {
			err := o.note(ctx, l, Discarded, by, why)
			var failed *store.ConditionError
			if errors.As(err, &failed) {
				rep.Taken++
				continue
			}
			if err != nil {
				return rep, err
			}
			o.cfg.Logger.Info("deadletter: discarded", "id", l.ID, "by", by, "why", why)
		}
		rep.Done++
	}
	return rep, nil
}
