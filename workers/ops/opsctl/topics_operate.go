package opsctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p topics) health() *cobra.Command {
	req := &topicv1.ListGroupsRequest{}
	return p.command(spec{
		operators: true,
		use:       "health TOPIC [GROUP]", short: "how a topic's groups are, or how fast one is", args: 1, more: 1,
		long: `  server topics health orders
  server topics health orders billing
`,
		flags: func(fs *pflag.FlagSet) { pagingFlags(fs, &req.PageSize, &req.PageToken, "groups") },
		run: func(c *call) error {
			if len(c.args) == 2 {
				return c.metrics()
			}
			req.Topic = c.args[0]
			res, err := c.topicAdmin().ListGroups(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			const columns = "GROUP\tSTATE\tHEALTHY\tMEMBERS\tPENDING\tIN FLIGHT\tPROCESSED\tSILENT FOR\tPROBLEMS"
			return c.page(columns, func(w io.Writer) {
				for _, g := range res.GetGroups() {
					healthy := "yes"
					if !g.GetHealthy() {
						healthy = "no"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\n", safe(g.GetGroup()),
						flagWord(g.GetState(), "SUBSCRIPTION_STATE_"), healthy, g.GetMembers(), g.GetPending(), g.GetInFlight(),
						g.GetProcessed(), formatAge(g.GetSinceHeartbeat()), strings.Join(g.GetProblems(), "; "))
				}
			}, res.GetNextPageToken())
		},
	})
}

// metrics prints how fast a group is.
func (c *call) metrics() error {
	res, err := c.topicAdmin().GetGroupMetrics(c.ctx, &topicv1.GetGroupMetricsRequest{Topic: c.args[0], Group: c.args[1]})
	if err != nil || c.printJSON(res) {
		return err
	}
	return c.table(func(w io.Writer) {
		row := rowsOf(w)
		row("processed", fmt.Sprintf("%d, of which %d did not pass the filter", res.GetProcessed(), res.GetFiltered()))
		row("failed", res.GetFailed())
		row("messages a second", fmt.Sprintf("%.1f", res.GetMessagesPerSecond()))
		average := "-"
		if d := res.GetAverageProcessing(); d != nil {
			average = d.AsDuration().Round(time.Millisecond).String()
		}
		row("average processing", average)
		row("pending", res.GetPending())
		row("lag", res.GetLag())
		row("oldest pending", formatTime(res.GetOldestPendingAt()))
		row("removed before", res.GetMissed())
	})
}

func formatAge(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return d.AsDuration().Truncate(time.Second).String()
}

func (p topics) monitors() *cobra.Command {
	var k topicv1.MonitorKind
	return p.command(spec{
		operators: true,
		use:       "monitors [TOPIC]", short: "what needs an operator's attention", more: 1,
		long: `  server topics monitors
  server topics monitors orders --kind stuck
`,
		flags: func(fs *pflag.FlagSet) {
			enumFlag(fs, &k, "kind", "MONITOR_KIND_", topicv1.MonitorKind_value, "only this")
		},
		run: func(c *call) error {
			req := &topicv1.ListMonitorsRequest{}
			if len(c.args) == 1 {
				req.Topic = c.args[0]
			}
			if k != 0 {
				req.Kinds = []topicv1.MonitorKind{k}
			}
			res, err := c.topicAdmin().ListMonitors(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			if len(res.GetFindings()) == 0 && !res.GetTruncated() {
				return c.say("nothing needs attention")
			}
			err = c.table(func(w io.Writer) {
				fmt.Fprintln(w, "KIND\tTOPIC\tGROUP\tMESSAGES\tSINCE\tAGE\tWHAT")
				for _, f := range res.GetFindings() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", flagWord(f.GetKind(), "MONITOR_KIND_"), safe(f.GetTopic()),
						orDash(f.GetGroup()), f.GetCount(), formatTime(f.GetSince()), formatAge(f.GetAge()), f.GetText())
				}
			})
			if err != nil || !res.GetTruncated() {
				return err
			}
			return c.say("there is more, or not every topic was looked at: ask by topic")
		},
	})
}

func (p topics) removeGroup() *cobra.Command {
	var execute bool
	req := &topicv1.RemoveGroupRequest{}
	return p.command(spec{
		operators: true,
		use:       "remove-group TOPIC GROUP", short: "end a group and forget it", args: 2,
		long: `  It gets nothing more; what its members have is waited for; then it is cancelled, holds nothing, and its rows
  are deleted.

  server topics remove-group orders billing
  server topics remove-group orders billing --wait 20s --execute
`,
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &execute)
			boundedFlag(fs, &req.Wait, "wait", "how long members may take for what they have, 10s by default", 0, 20*time.Second)
		},
		run: func(c *call) error {
			if !execute {
				res, err := c.subscription(c.args[1])
				if err != nil || c.printJSON(res) {
					return err
				}
				if err := c.printGroups([]*topicv1.Subscription{res.GetSubscription()}); err != nil {
					return err
				}
				return c.say(dryRun)
			}
			req.Topic, req.Group = c.args[0], c.args[1]
			res, err := c.topicAdmin().RemoveGroup(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%s is removed; it held %d messages, of which members had %d", safe(c.args[1]), res.GetReleased(),
				res.GetAbandoned())
		},
	})
}

func (p topics) resurrect() *cobra.Command {
	req := &topicv1.ResurrectRequest{}
	return p.command(spec{
		operators: true,
		use:       "resurrect TOPIC GROUP", short: "make a dead group active", args: 2,
		long: `  Without members it dies again after its timeout. A member that comes back does the same by itself.

  server topics resurrect orders billing
  server topics resurrect orders billing --backfill
`,
		flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&req.Backfill, "backfill", false, "with what it missed; otherwise it continues from now")
		},
		run: func(c *call) error {
			req.Topic, req.Group = c.args[0], c.args[1]
			res, err := c.topicAdmin().Resurrect(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.say("%s is %s", safe(c.args[1]), stateOf(res.GetSubscription()))
		},
	})
}

func (p topics) forceComplete() *cobra.Command {
	var execute bool
	req := &topicv1.ForceCompleteRequest{}
	return p.command(spec{
		operators: true,
		use:       "force-complete TOPIC AGE", short: "complete old messages that no living group is due", args: 2,
		long: `  AGE is that of the youngest message that is completed, such as 90m or 7d. Living groups lose nothing, unless
  --force says so.

  server topics force-complete orders 1d
  server topics force-complete orders 7d --group billing --force --execute
`,
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &execute)
			fs.StringVar(&req.Group, "group", "", "only what this `group` holds")
			fs.BoolVar(&req.Force, "force", false, "active and paused groups do not get these messages either")
		},
		run: func(c *call) error {
			age, err := parseDuration(c.args[1])
			if err != nil {
				return cmdline.Usagef("AGE %w", err)
			}
			req.Topic, req.OlderThan, req.DryRun = c.args[0], durationpb.New(age), !execute
			res, err := c.topicAdmin().ForceComplete(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			err = c.say("%d messages were due to no group, %d held by groups that have ended, %d not for living groups any more",
				res.GetOrphaned(), res.GetReleased(), res.GetSkipped())
			if err != nil || execute {
				return err
			}
			return c.say(dryRun)
		},
	})
}

func (p topics) jobs() *cobra.Command {
	return p.command(spec{
		operators: true,
		use:       "jobs [JOB]", short: "the jobs on topics and their last runs, or run one", more: 1,
		long: `  JOB is trim, detection or subscriptions. The setting topic-jobs says how often they run.

  server topics jobs
  server topics jobs trim
`,
		run: func(c *call) error {
			if len(c.args) == 0 {
				return c.listJobs()
			}
			job := topicv1.Job(topicv1.Job_value["JOB_"+strings.ToUpper(c.args[0])])
			if job == 0 {
				return cmdline.Usagef("JOB must be trim, detection or subscriptions, not %.40q", c.args[0])
			}
			res, err := c.topicAdmin().RunJob(c.ctx, &topicv1.RunJobRequest{Job: job})
			if err != nil || c.printJSON(res) {
				return err
			}
			r := res.GetRun()
			if err := c.say("%d topics looked at, %d done, %d failed, in %s", r.GetTopics(), r.GetDone(), r.GetFailed(),
				r.GetTook().AsDuration().Round(time.Millisecond)); err != nil || r.GetProblem() == "" {
				return err
			}
			return c.say("%s", r.GetProblem())
		},
	})
}

func (c *call) listJobs() error {
	res, err := c.topicAdmin().GetJobs(c.ctx, &topicv1.GetJobsRequest{})
	if err != nil || c.printJSON(res) {
		return err
	}
	if err := c.say("schedule %s", res.GetSchedule()); err != nil {
		return err
	}
	return c.table(func(w io.Writer) {
		fmt.Fprintln(w, "JOB\tEVERY\tNEXT\tLAST\tTOOK\tTOPICS\tDONE\tFAILED\tPROBLEM")
		for _, j := range res.GetJobs() {
			r := j.GetLast()
			last := formatTime(r.GetBeganAt())
			if j.GetRunning() {
				last = "running"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", flagWord(j.GetJob(), "JOB_"), formatDuration(j.GetEvery()),
				formatTime(j.GetNextAt()), last, r.GetTook().AsDuration().Round(time.Millisecond), r.GetTopics(), r.GetDone(),
				r.GetFailed(), r.GetProblem())
		}
	})
}

func (p topics) audit() *cobra.Command {
	req := &topicv1.ListAuditRequest{}
	var since *durationpb.Duration
	return p.command(spec{
		operators: true,
		use:       "audit [TOPIC]", short: "who changed topics, and what jobs did", more: 1,
		long: `  server topics audit orders --since 7d
  server topics audit --actor ada --call ForceComplete
`,
		flags: func(fs *pflag.FlagSet) {
			pagingFlags(fs, &req.PageSize, &req.PageToken, "records")
			fs.StringVar(&req.Actor, "actor", "", "only of this `caller`; server is what jobs did")
			fs.StringVar(&req.Call, "call", "", "only this `call`, such as SeekSubscription or Trim")
			durationFlag(fs, &since, "since", "how far back")
		},
		run: func(c *call) error {
			if len(c.args) == 1 {
				req.Topic = c.args[0]
			}
			if since != nil {
				req.After = timestamppb.New(time.Now().Add(-since.AsDuration()))
			}
			res, err := c.topicAdmin().ListAudit(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("BEGAN\tACTOR\tCALL\tCODE\tREQUEST\tRESULT", func(w io.Writer) {
				for _, r := range res.GetRecords() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", formatTime(r.GetBeganAt()), safe(r.GetActor()), safe(r.GetCall()),
						r.GetCode(), oneLine(r.GetRequest()), oneLine(r.GetResult()))
				}
			}, res.GetNextPageToken())
		},
	})
}

// oneLine makes text of others fit for a table.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
