package opsctl

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/wait"
)

func (p *program) projections() *cobra.Command {
	return cmdline.Group("projections", "tables that follow from events, made again",
		p.changeRebuild("cancel", "drop what a rebuild has made", opsv1.RebuildAction_REBUILD_ACTION_CANCEL,
			"it is canceled"),
		p.listProjections(),
		p.changeRebuild("pause", "let a rebuild wait", opsv1.RebuildAction_REBUILD_ACTION_PAUSE, "it waits"),
		p.rebuildProjection(),
		p.changeRebuild("resume", "resume a paused rebuild", opsv1.RebuildAction_REBUILD_ACTION_RESUME, "it resumes"))
}

func (c *call) projections() opsv1connect.ProjectionServiceClient {
	return opsv1connect.NewProjectionServiceClient(c.http, c.url, c.with)
}

func (p *program) listProjections() *cobra.Command {
	return p.command(spec{
		use: "list", short: "list the projections and how far their rebuilds are",
		run: func(c *call) error {
			res, err := c.projections().ListProjections(c.ctx, &opsv1.ListProjectionsRequest{})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "PROJECTION\tLIVE BUILD\tVERSION\tREBUILD\tSTUCK\tCHANGED AT\tBY\tABOUT")
				for _, p := range res.GetProjections() {
					live := "none yet"
					if p.GetLiveBuild() != 0 {
						live = fmt.Sprint(p.GetLiveBuild())
					}
					last := cmp.Or(p.GetRebuild(), p.GetLastRebuild())
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", safe(p.GetName()), live, p.GetLiveVersion(),
						rebuildState(p.GetRebuild()), last.GetStuckChats(), formatTime(p.GetChangedAt()),
						orDash(p.GetChangedBy()), safe(p.GetAbout()))
				}
			})
		},
	})
}

// rebuildState says in a few words how far a rebuild is.
func rebuildState(r *opsv1.ProjectionRebuild) string {
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

func (p *program) rebuildProjection() *cobra.Command {
	req := &opsv1.ChangeRebuildRequest{Action: opsv1.RebuildAction_REBUILD_ACTION_START}
	var detach bool
	return p.command(spec{
		use: "rebuild NAME", short: "make a projection again beside the live one, and show how far it is", args: 1,
		needs: "the name of one projection, as projections list prints it",
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &req.Execute)
			acceptGapsFlag(fs, &req.AcceptGaps)
			fs.BoolVar(&detach, "detach", false, "do not wait for its end")
		},
		run: func(c *call) error {
			req.Name = c.args[0]
			res, err := c.projections().ChangeRebuild(c.ctx, req)
			if err != nil {
				return err
			}
			if !req.GetExecute() || detach {
				if c.printJSON(res) {
					return nil
				}
				return c.done(req.GetExecute(), "it is begun; projections list shows how far it is")
			}
			return c.followRebuild(req.GetName(), res.GetProjection().GetRebuild().GetBuild())
		},
	})
}

// followRebuild shows the progress of a rebuild until it ends.
func (c *call) followRebuild(name string, build int64) error {
	bar := cmdline.NewBar(c.stdout)
	for {
		res, err := c.projections().ListProjections(c.ctx, &opsv1.ListProjectionsRequest{})
		if err != nil {
			bar.End()
			fmt.Fprintln(c.stderr, "the rebuild continues without this command; projections cancel drops it:")
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
				fmt.Fprintf(c.stdout, "%s: build %d is live, with %d events", safe(name), build, last.GetDoneEvents())
				if last.GetStuckChats() > 0 {
					fmt.Fprintf(c.stdout, ", gaps: %d (%s)", last.GetStuckChats(), gapNames(last))
				}
				fmt.Fprintln(c.stdout)
			}
			return nil
		default:
			bar.End()
			fmt.Fprintf(c.stderr, "%s: build %d was canceled by %s\n", safe(name), build, safe(p.GetChangedBy()))
			return errLeft
		}
		if err := wait.For(c.ctx, rebuildEvery); err != nil {
			bar.End()
			fmt.Fprintln(c.stderr, "the rebuild continues without this command; projections list shows how far it is")
			return err
		}
	}
}

// printBlocked says which gaps keep a build from becoming live, and how to proceed.
func (c *call) printBlocked(p *opsv1.Projection) {
	name, r := safe(p.GetName()), p.GetRebuild()
	fmt.Fprintf(c.stderr, "%s: build %d is not live, gaps: %d (%s)\n", name, r.GetBuild(), r.GetStuckChats(),
		gapNames(r))
	if p.GetLiveBuild() != 0 {
		fmt.Fprintf(c.stderr, "build %d stays live\n", p.GetLiveBuild())
	}
	fmt.Fprintf(c.stderr, "repair the events and run projections resume %s --execute,\n"+
		"or add --accept-gaps to use the build as it is\n", name)
	if p.GetLiveBuild() != 0 && p.GetLiveVersion() == r.GetVersion() { // else there is nothing to return to
		fmt.Fprintf(c.stderr, "projections cancel %s --execute gives the build up\n", name)
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

func acceptGapsFlag(fs *pflag.FlagSet, accept *bool) {
	fs.BoolVar(accept, "accept-gaps", false, "make the build live although events are missing in it")
}

func (p *program) changeRebuild(name, short string, a opsv1.RebuildAction, done string) *cobra.Command {
	req := &opsv1.ChangeRebuildRequest{Action: a}
	return p.command(spec{
		use: name + " NAME", short: short, args: 1, needs: "the name of one projection",
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &req.Execute)
			if a == opsv1.RebuildAction_REBUILD_ACTION_RESUME {
				acceptGapsFlag(fs, &req.AcceptGaps)
			}
		},
		run: func(c *call) error {
			req.Name = c.args[0]
			res, err := c.projections().ChangeRebuild(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.done(req.GetExecute(), "%s", done)
		},
	})
}

func (p *program) notifications() *cobra.Command {
	req := &opsv1.ListNotificationsRequest{}
	var status string
	var since time.Duration
	return p.command(spec{
		use: "notifications", short: "list which events which consumer could not process, and what became of them",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&req.ChatId, "chat", "", "events of this `chat`")
			fs.StringVar(&req.UserId, "user", "", "events that this `user` caused")
			fs.StringVar(&req.Group, "group", "", "this consumer `group` could not process them")
			fs.StringVar(&req.EventId, "event", "", "this `event`")
			fs.StringVar(&status, "status", "", "`status` open, running, redriven or discarded; any if not given")
			fs.DurationVar(&since, "since", 0, "failed within this `time`, such as 24h; 0: as long as there are any")
			pagingFlags(fs, &req.PageSize, &req.PageToken, "notifications")
		},
		run: func(c *call) error {
			if status != "" {
				s := opsv1.DeadLetterStatus(opsv1.DeadLetterStatus_value["DEAD_LETTER_STATUS_"+strings.ToUpper(status)])
				if s == 0 {
					return cmdline.Usagef("%.40q is no status: open, running, redriven and discarded are", status)
				}
				req.Statuses = []opsv1.DeadLetterStatus{s}
			}
			if since < 0 {
				return cmdline.Usagef("since must not be negative")
			}
			if since > 0 {
				req.FailedFrom = timestamppb.New(time.Now().Add(-since))
			}
			res, err := c.projections().ListNotifications(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("FAILED AT\tGROUP\tSTATUS\tEVENT\tCHAT\tVERSION\tUSER\tREASON", func(w io.Writer) {
				for _, n := range res.GetNotifications() {
					event := "unreadable"
					if n.GetEventType() != "" {
						event = safe(n.GetEventType())
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", formatTime(n.GetFailedAt()), safe(n.GetGroup()),
						word(n.GetStatus(), "DEAD_LETTER_STATUS_"), event, orDash(n.GetChatId()), n.GetVersion(),
						orDash(n.GetUserId()), safe(n.GetReason()))
				}
			}, res.GetNextPageToken())
		},
	})
}

func (p *program) activity() *cobra.Command {
	req := &opsv1.GetChatActivityRequest{}
	return p.command(spec{
		use: "activity CHAT", short: "show how many messages a chat had on each day, and from how many users", args: 1,
		needs: "the id of one chat",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&req.FromDay, "from", "", "first `day`, YYYY-MM-DD in UTC; 30 days before the last one if not given")
			fs.StringVar(&req.ToDay, "to", "", "last `day`; today if not given")
			fs.BoolVar(&req.Senders, "senders", false, "name the senders of the last day, too")
		},
		run: func(c *call) error {
			req.ChatId = c.args[0]
			res, err := c.projections().GetChatActivity(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
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
			})
		},
	})
}
