package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func migrateTopic(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.MigrateTopicRequest{}
	partitions := fs.Int("partitions", 0, "partitions that the topic is to have, a power of two; required")
	repeatedFlag(fs, &req.IgnoreGroups, "ignore-group", "this group need not have read the old topic")
	freeze := fs.Duration("max-freeze", 5*time.Minute,
		"thaw the topic if the old one is not drained after this time, 1s to 1h")
	bindExecute(fs, &req.Execute)
	return func(c *call, args []string) error {
		if len(args) != 1 || *partitions < 1 || *partitions > 1<<20 {
			return errUsage{errors.New("migration run needs a topic and --partitions")}
		}
		req.Topic, req.Partitions, req.MaxFreeze = args[0], int32(*partitions), durationpb.New(*freeze)
		stream, err := c.client.MigrateTopic(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			if m := stream.Msg(); !c.printJSON(m) {
				fmt.Fprintln(c.cfg.Stdout, step(m, req.GetExecute()))
			}
		}
		if err := stream.Err(); err != nil {
			if req.GetExecute() {
				fmt.Fprintln(c.cfg.Stderr, "the same command continues from the last step, `migration abort` undoes it:")
			}
			return err
		}
		if !req.GetExecute() && !c.json {
			fmt.Fprintln(c.cfg.Stdout, dryRun)
		}
		return nil
	}
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

func migrationStatus(*flag.FlagSet) func(*call, []string) error {
	return func(c *call, args []string) error {
		if err := noArguments(args); err != nil {
			return err
		}
		res, err := c.client.ListTopicVersions(c.ctx, &opsv1.ListTopicVersionsRequest{})
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintln(w, "TOPIC\tNAME\tPARTITIONS\tSTATUS\tREPLACED AT\tKEPT UNTIL")
		for _, v := range res.GetVersions() {
			status := strings.ToLower(strings.TrimPrefix(v.GetStatus().String(), "TOPIC_VERSION_STATUS_"))
			until, kept := "-", "-"
			if v.GetUntil() != nil {
				until, kept = formatTime(v.GetUntil()), formatTime(v.GetKeptUntil())
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\n", safe(v.GetTopic()), safe(v.GetName()), v.GetPartitions(), status, until,
				kept)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if topic := res.GetMigrating(); topic != "" {
			phase := strings.ToLower(strings.TrimPrefix(res.GetPhase().String(), "TOPIC_MIGRATION_PHASE_"))
			fmt.Fprintf(c.cfg.Stdout, "\n%s is being migrated, begun by %s: %s\n", safe(topic), safe(res.GetMigratingBy()),
				phase)
		}
		return nil
	}
}

func abortMigration(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	return func(c *call, args []string) error {
		if err := noArguments(args); err != nil {
			return err
		}
		res, err := c.client.AbortTopicMigration(c.ctx, &opsv1.AbortTopicMigrationRequest{Execute: execute})
		if err != nil || c.printJSON(res) {
			return err
		}
		fmt.Fprintf(c.cfg.Stdout, "%s stays as it is\n", safe(res.GetTopic()))
		return c.printDone(execute, "its migration is aborted")
	}
}

func retireTopic(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	return func(c *call, args []string) error {
		name, err := oneArgument(args, "migration retire needs the name of a past version, as migration status prints it")
		if err != nil {
			return err
		}
		res, err := c.client.RetireTopicVersion(c.ctx, &opsv1.RetireTopicVersionRequest{Name: name, Execute: execute})
		if err != nil || c.printJSON(res) {
			return err
		}
		fmt.Fprintf(c.cfg.Stdout, "the records of %s are older than its retention\n", safe(name))
		return c.printDone(execute, "no group reads it any more: it may be deleted")
	}
}
