package opsctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) migrations() *cobra.Command {
	return cmdline.Group("migration", "move a topic to more partitions, while everything runs", p.abortMigration(),
		p.retireTopic(), p.migrateTopic(), p.migrationStatus())
}

func (p *program) migrateTopic() *cobra.Command {
	req := &opsv1.MigrateTopicRequest{}
	var partitions int
	var freeze time.Duration
	return p.command(spec{
		use: "run TOPIC", short: "move a topic to another number of partitions, or resume the move", args: 1,
		needs: "a topic and --partitions",
		flags: func(fs *pflag.FlagSet) {
			fs.IntVar(&partitions, "partitions", 0, "`partitions` that the topic is to have, a power of two; required")
			fs.StringArrayVar(&req.IgnoreGroups, "ignore-group", nil,
				"this `group` need not have read the old topic; may come several times")
			fs.DurationVar(&freeze, "max-freeze", 5*time.Minute,
				"thaw the topic if the old one is not drained after this time, 1s to 1h")
			executeFlag(fs, &req.Execute)
		},
		run: func(c *call) error {
			if partitions < 1 || partitions > 1<<20 {
				return c.misuse
			}
			req.Topic, req.Partitions, req.MaxFreeze = c.args[0], int32(partitions), durationpb.New(freeze)
			return c.migrate(req)
		},
	})
}

func (c *call) migrate(req *opsv1.MigrateTopicRequest) error {
	stream, err := c.ops().MigrateTopic(c.ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if m := stream.Msg(); !c.printJSON(m) {
			fmt.Fprintln(c.stdout, step(m, req.GetExecute()))
		}
	}
	if err := stream.Err(); err != nil {
		if req.GetExecute() {
			fmt.Fprintln(c.stderr, "the same command continues from the last step, `migration abort` undoes it:")
		}
		return err
	}
	if !req.GetExecute() && !c.json {
		return c.say(dryRun)
	}
	return nil
}

// step describes one step in one line.
func step(m *opsv1.MigrateTopicResponse, execute bool) string {
	from, to := safe(m.GetFrom()), safe(m.GetTo())
	var line string
	switch m.GetPhase() {
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_UNSPECIFIED:
		switch {
		case m.GetDone():
			return fmt.Sprintf("done       %s has %d partitions", to, m.GetPartitions())
		case !execute:
			line = fmt.Sprintf("begins     from %s to %s with %d partitions", from, to, m.GetPartitions())
		}
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_PLANNED:
		line = fmt.Sprintf("1 planned  %s will have %d partitions", to, m.GetPartitions())
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_CREATED:
		line = fmt.Sprintf("2 created  %s, and groups subscribe to it", to)
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_FROZEN:
		line = fmt.Sprintf("3 frozen   relays are to leave events of %s in the outbox", from)
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_QUIET:
		line = fmt.Sprintf("4 quiet    nothing is written to %s any more", from)
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_DRAINED:
		line = fmt.Sprintf("5 drained  all groups have read %s to its end", from)
	case opsv1.TopicMigrationPhase_TOPIC_MIGRATION_PHASE_SWITCHED:
		line = fmt.Sprintf("6 switched events go to %s", to)
	}
	if d := m.GetFrozen().AsDuration(); d > 0 {
		line += fmt.Sprintf(", frozen for %v", d.Round(100*time.Millisecond))
	}
	if len(m.GetWaiting()) > 0 {
		line += "; waits: " + safe(strings.Join(m.GetWaiting(), ", "))
	}
	return line
}

func (p *program) migrationStatus() *cobra.Command {
	return p.command(spec{
		use: "status", short: "list the versions of the topics, and what is being migrated",
		run: func(c *call) error {
			res, err := c.ops().ListTopicVersions(c.ctx, &opsv1.ListTopicVersionsRequest{})
			if err != nil || c.printJSON(res) {
				return err
			}
			err = c.table(func(w io.Writer) {
				fmt.Fprintln(w, "TOPIC\tNAME\tPARTITIONS\tSTATUS\tREPLACED AT\tKEPT UNTIL")
				for _, v := range res.GetVersions() {
					until, kept := "-", "-"
					if v.GetUntil() != nil {
						until, kept = formatTime(v.GetUntil()), formatTime(v.GetKeptUntil())
					}
					fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", safe(v.GetTopic()), safe(v.GetName()), v.GetPartitions(),
						word(v.GetStatus(), "TOPIC_VERSION_STATUS_"), until, kept)
				}
			})
			if topic := res.GetMigrating(); err == nil && topic != "" {
				return c.say("\n%s is being migrated, begun by %s: %s", safe(topic), safe(res.GetMigratingBy()),
					word(res.GetPhase(), "TOPIC_MIGRATION_PHASE_"))
			}
			return err
		},
	})
}

func (p *program) abortMigration() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "abort", short: "undo a migration whose new topic is not published to yet",
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			res, err := c.ops().AbortTopicMigration(c.ctx, &opsv1.AbortTopicMigrationRequest{Execute: execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.say("%s stays as it is", safe(res.GetTopic())); err != nil {
				return err
			}
			return c.done(execute, "its migration is aborted")
		},
	})
}

func (p *program) retireTopic() *cobra.Command {
	var execute bool
	return p.command(spec{
		use: "retire NAME", short: "stop all reads of an old version, after its retention", args: 1,
		needs: "the name of a past version, as migration status prints it",
		flags: func(fs *pflag.FlagSet) { executeFlag(fs, &execute) },
		run: func(c *call) error {
			res, err := c.ops().RetireTopicVersion(c.ctx,
				&opsv1.RetireTopicVersionRequest{Name: c.args[0], Execute: execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.say("the records of %s are older than its retention", safe(c.args[0])); err != nil {
				return err
			}
			return c.done(execute, "no group reads it any more: it may be deleted")
		},
	})
}
