package opsctl

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/wait"
)

func listProjections(*flag.FlagSet) func(*call, []string) error {
	return func(c *call, args []string) error {
		if err := noArguments(args); err != nil {
			return err
		}
		res, err := c.projections.ListProjections(c.ctx, &opsv1.ListProjectionsRequest{})
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintln(w, "PROJECTION\tLIVE BUILD\tVERSION\tREBUILD\tSTUCK\tCHANGED AT\tBY\tABOUT")
		for _, p := range res.GetProjections() {
			live := "none yet"
			if p.GetLiveBuild() != 0 {
				live = fmt.Sprint(p.GetLiveBuild())
			}
			last := cmp.Or(p.GetRebuild(), p.GetLastRebuild())
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", safe(p.GetName()), live, p.GetLiveVersion(),
				state(p.GetRebuild()), last.GetStuckChats(), formatTime(p.GetChangedAt()), cmp.Or(safe(p.GetChangedBy()), "-"),
				safe(p.GetAbout()))
		}
		return w.Flush()
	}
}

// state says in a few words how far a rebuild is.
func state(r *opsv1.ProjectionRebuild) string {
	percent := fmt.Sprintf("%d%%", cmdline.Percent(r.GetDoneEvents(), r.GetTotalEvents()))
	switch {
	case r == nil:
		return "-"
	case r.GetBlocked():
		return fmt.Sprintf("blocked, gaps: %d", r.GetStuckChats())
	case r.GetPaused():
		return "paused at " + percent
	case r.GetBeganAt() == nil:
		return "waits for a process"
	}
	return percent
}

// rebuildEvery is how often the progress of a rebuild is asked for.
const rebuildEvery = 500 * time.Millisecond

func rebuildProjection(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	acceptGaps := bindAcceptGaps(fs)
	detach := fs.Bool("detach", false, "do not wait for its end")
	return func(c *call, args []string) error {
		name, err := oneArgument(args, "projections rebuild needs the name of one projection, as projections list prints it")
		if err != nil {
			return err
		}
		res, err := c.projections.ChangeRebuild(c.ctx, &opsv1.ChangeRebuildRequest{
			Name: name, Action: opsv1.RebuildAction_REBUILD_ACTION_START, Execute: execute, AcceptGaps: *acceptGaps})
		if err != nil {
			return err
		}
		if !execute || *detach {
			if c.printJSON(res) {
				return nil
			}
			return c.printDone(execute, "it is begun; projections list shows how far it is")
		}
		return c.follow(name, res.GetProjection().GetRebuild().GetBuild())
	}
}

// follow shows the progress of a rebuild until it ends.
func (c *call) follow(name string, build int64) error {
	bar := cmdline.NewBar(c.cfg.Stdout)
	for {
		res, err := c.projections.ListProjections(c.ctx, &opsv1.ListProjectionsRequest{})
		if err != nil {
			bar.End()
			fmt.Fprintln(c.cfg.Stderr, "the rebuild continues without this command; projections cancel drops it:")
			return err
		}
		i := slices.IndexFunc(res.GetProjections(), func(p *opsv1.Projection) bool { return p.GetName() == name })
		if i < 0 {
			return fmt.Errorf("there is no projection %s any more", safe(name))
		}
		p := res.GetProjections()[i]
		switch r := p.GetRebuild(); {
		case r.GetBuild() == build && r.GetBlocked():
			bar.End()
			if !c.printJSON(p) {
				c.printBlocked(p)
			}
			return errLeft
		case r.GetBuild() == build && !c.json:
			showRebuild(bar, r, time.Now())
		case r.GetBuild() == build:
			c.printJSON(p)
		case p.GetLiveBuild() >= build:
			bar.End()
			if !c.printJSON(p) {
				last := p.GetLastRebuild()
				fmt.Fprintf(c.cfg.Stdout, "%s: build %d is live, with %d events", safe(name), build, last.GetDoneEvents())
				if last.GetStuckChats() > 0 {
					fmt.Fprintf(c.cfg.Stdout, ", gaps: %d (%s)", last.GetStuckChats(), gapNames(last))
				}
				fmt.Fprintln(c.cfg.Stdout)
			}
			return nil
		default:
			bar.End()
			fmt.Fprintf(c.cfg.Stderr, "%s: build %d was canceled by %s\n", safe(name), build, safe(p.GetChangedBy()))
			return errLeft
		}
		if err := wait.For(c.ctx, rebuildEvery); err != nil {
			bar.End()
			fmt.Fprintln(c.cfg.Stderr, "the rebuild continues without this command; projections list shows how far it is")
			return err
		}
	}
}

// printBlocked says which gaps keep a build from becoming live, and how to proceed.
func (c *call) printBlocked(p *opsv1.Projection) {
	name, r := safe(p.GetName()), p.GetRebuild()
	fmt.Fprintf(c.cfg.Stderr, "%s: build %d is not live, gaps: %d (%s)\n", name, r.GetBuild(), r.GetStuckChats(),
		gapNames(r))
	if p.GetLiveBuild() != 0 {
		fmt.Fprintf(c.cfg.Stderr, "build %d stays live\n", p.GetLiveBuild())
	}
	fmt.Fprintf(c.cfg.Stderr, "repair the events and run projections resume %s --execute,\n"+
		"or add --accept-gaps to use the build as it is\n", name)
	if p.GetLiveBuild() != 0 && p.GetLiveVersion() == r.GetVersion() { // else there is nothing to return to
		fmt.Fprintf(c.cfg.Stderr, "projections cancel %s --execute gives the build up\n", name)
	}
}

// shownGaps is how many gaps are printed; --json prints all that the service names.
const shownGaps = 10

// gapNames are the first gaps of a rebuild by name.
func gapNames(r *opsv1.ProjectionRebuild) string {
	shown := r.GetGaps()[:min(len(r.GetGaps()), shownGaps)]
	list := safe(strings.Join(shown, ", "))
	if more := r.GetStuckChats() - int64(len(shown)); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// showRebuild moves the bar to where a rebuild is.
func showRebuild(bar *cmdline.Bar, r *opsv1.ProjectionRebuild, now time.Time) {
	note := fmt.Sprintf("%d of %d events", min(r.GetDoneEvents(), r.GetTotalEvents()), r.GetTotalEvents())
	if r.GetPaused() {
		note += ", paused"
	} else if left := cmdline.Left(now.Sub(r.GetBeganAt().AsTime()), r.GetDoneEvents(), r.GetTotalEvents()); left > 0 {
		note += fmt.Sprintf(", about %v left", left)
	}
	bar.Show(r.GetDoneEvents(), r.GetTotalEvents(), note)
}

func pauseRebuild(fs *flag.FlagSet) func(*call, []string) error {
	return changeRebuild(fs, opsv1.RebuildAction_REBUILD_ACTION_PAUSE, "it waits", new(bool))
}

func resumeRebuild(fs *flag.FlagSet) func(*call, []string) error {
	acceptGaps := bindAcceptGaps(fs)
	return changeRebuild(fs, opsv1.RebuildAction_REBUILD_ACTION_RESUME, "it resumes", acceptGaps)
}

func bindAcceptGaps(fs *flag.FlagSet) *bool {
	return fs.Bool("accept-gaps", false, "make the build live although events are missing in it")
}

func cancelRebuild(fs *flag.FlagSet) func(*call, []string) error {
	return changeRebuild(fs, opsv1.RebuildAction_REBUILD_ACTION_CANCEL, "it is canceled", new(bool))
}

func changeRebuild(
	fs *flag.FlagSet, a opsv1.RebuildAction, done string, acceptGaps *bool,
) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	return func(c *call, args []string) error {
		name, err := oneArgument(args,
			"projections "+enumWord(a, "REBUILD_ACTION_")+" needs the name of one projection")
		if err != nil {
			return err
		}
		res, err := c.projections.ChangeRebuild(c.ctx,
			&opsv1.ChangeRebuildRequest{Name: name, Action: a, Execute: execute, AcceptGaps: *acceptGaps})
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.printDone(execute, done)
	}
}

func listNotifications(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.ListNotificationsRequest{}
	fs.StringVar(&req.ChatId, "chat", "", "events of this chat")
	fs.StringVar(&req.UserId, "user", "", "events that this user caused")
	fs.StringVar(&req.Group, "group", "", "this consumer group could not process them")
	fs.StringVar(&req.EventId, "event", "", "this event")
	status := fs.String("status", "", "open, running, redriven or discarded; any if not given")
	since := fs.Duration("since", 0, "failed within this time, such as 24h; 0: as long as there are any")
	p := bindPaging(fs, "notifications")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		if *status != "" {
			s, ok := opsv1.DeadLetterStatus_value["DEAD_LETTER_STATUS_"+strings.ToUpper(*status)]
			if !ok || s == 0 {
				return errUsage{fmt.Errorf("%.40q is no status: open, running, redriven and discarded are", *status)}
			}
			req.Statuses = []opsv1.DeadLetterStatus{opsv1.DeadLetterStatus(s)}
		}
		if *since < 0 {
			return errUsage{errors.New("since must not be negative")}
		}
		if *since > 0 {
			req.FailedFrom = timestamppb.New(time.Now().Add(-*since))
		}
		req.PageSize, req.PageToken = int32(p.limit), p.token
		res, err := c.projections.ListNotifications(c.ctx, req)
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.page("FAILED AT\tGROUP\tSTATUS\tEVENT\tCHAT\tVERSION\tUSER\tREASON", func(w io.Writer) {
			for _, n := range res.GetNotifications() {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", formatTime(n.GetFailedAt()), safe(n.GetGroup()),
					enumWord(n.GetStatus(), "DEAD_LETTER_STATUS_"), cmp.Or(safe(n.GetEventType()), "unreadable"),
					cmp.Or(safe(n.GetChatId()), "-"), n.GetVersion(), cmp.Or(safe(n.GetUserId()), "-"), safe(n.GetReason()))
			}
		}, res.GetNextPageToken())
	}
}

func chatActivity(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.GetChatActivityRequest{}
	fs.StringVar(&req.FromDay, "from", "", "first day, YYYY-MM-DD in UTC; 30 days before the last one if not given")
	fs.StringVar(&req.ToDay, "to", "", "last day; today if not given")
	fs.BoolVar(&req.Senders, "senders", false, "name the senders of the last day, too")
	return func(c *call, args []string) error {
		chat, err := oneArgument(args, "activity needs the id of one chat")
		if err != nil {
			return err
		}
		req.ChatId = chat
		res, err := c.projections.GetChatActivity(c.ctx, req)
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintln(w, "DAY\tMESSAGES\tSENDERS")
		for _, d := range res.GetDays() {
			fmt.Fprintf(w, "%s\t%d\t%d\n", safe(d.GetDay()), d.GetMessages(), d.GetSenders())
		}
		if req.GetSenders() {
			fmt.Fprintln(w, "\nSENDER\tMESSAGES\t")
			for _, s := range res.GetSenders() {
				fmt.Fprintf(w, "%s\t%d\t\n", safe(s.GetUserId()), s.GetMessages())
			}
		}
		return w.Flush()
	}
}
