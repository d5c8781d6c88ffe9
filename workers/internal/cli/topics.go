package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/kafka/capacity"
	"github.com/parley-chat/parley/server/kafka/dial"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// topicCommands makes the commands on the topics of Kafka, and the same under the name that
// they had before topics were something else.
func (p *program) topicCommands() []*cobra.Command {
	old := p.kafkaCommands("topics")
	old.Hidden = true
	for _, c := range commandsBelow(old) {
		c.PreRun = func(c *cobra.Command, _ []string) {
			fmt.Fprintf(p.stderr, "workers: topics is now kafka: workers kafka%s\n",
				strings.TrimPrefix(c.CommandPath(), "workers topics"))
		}
	}
	return []*cobra.Command{p.kafkaCommands("kafka"), old}
}

// commandsBelow lists all commands below one.
func commandsBelow(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		list = append(append(list, sub), commandsBelow(sub)...)
	}
	return list
}

func (p *program) kafkaCommands(name string) *cobra.Command {
	rights := p.command("acl", "print who may do what on Kafka", "",
		func(_ context.Context, s settings, stdout io.Writer) error {
			_, err := fmt.Fprintln(stdout, strings.Join(acl.Commands(s.principals), "\n"))
			return err
		})
	rights.AddCommand(
		p.command("apply", "make the ACLs of Kafka", "", applyACLs),
		p.command("verify", "check the ACLs of Kafka", verifyHelp, verifyACLs),
	)
	return cmdline.Group(name, "commands on the topics of Kafka",
		p.command("apply", "make the topics of Kafka", "", applyTopics),
		p.command("verify", "check the topics of Kafka",
			verifyHelp+"  It also warns of brokers whose own settings are weak, which is no difference.\n", verifyTopics),
		p.command("messages", "show the topics of Kafka that hold what is published to topics", messagesHelp, showMessages),
		p.command("terraform", "print the topics of Kafka for Terraform", "",
			func(_ context.Context, s settings, stdout io.Writer) error {
				_, err := io.WriteString(stdout, capacity.Terraform()+acl.Terraform(s.principals))
				return err
			}),
		p.command("capacity", "print what the topics are made for", "",
			func(_ context.Context, _ settings, stdout io.Writer) error {
				_, err := io.WriteString(stdout, capacity.Sheet())
				return err
			}),
		rights,
	)
}

// withCluster calls f with a connection to the cluster that is closed afterwards.
func (s settings) withCluster(ctx context.Context, f func(context.Context, *kafka.Admin) error) (err error) {
	defer func() { err = acl.Explain(err) }()
	if err := s.backend.Kafka.Validate(); err != nil {
		return cmdline.Usage(err)
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	a, err := dial.Connect(ctx, s.backend.Kafka, dialTime)
	if err != nil {
		return err
	}
	defer a.Close()
	if err := versions.Discover(ctx, a); err != nil {
		return err
	}
	return f(ctx, a)
}

const messagesHelp = `messages shows the topics of Kafka that servers have made for durable topics, and
parley.topics.state beside them: RECORDS with the ends of transactions, RETENTION
after which a message goes whatever becomes of it. Servers make and trim them; nobody
else has to. The exit code is 3 if one has a problem.
`

func showMessages(ctx context.Context, s settings, stdout io.Writer) error {
	return s.withCluster(ctx, func(ctx context.Context, a *kafka.Admin) error {
		list, err := inspect.Topics(ctx, a.Client())
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
		var problems []string
		for i, t := range list {
			if i == 0 {
				fmt.Fprintln(w, "TOPIC\tPARTITIONS\tREPLICAS\tRECORDS\tRETENTION")
			}
			keep := t.Retention
			if ms, err := strconv.ParseInt(keep, 10, 64); err == nil && ms >= 0 {
				keep = (time.Duration(ms) * time.Millisecond).String()
			} else if err == nil {
				keep = "for good"
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", t.Name, t.Partitions, t.Replicas, t.Records, keep)
			for _, p := range t.Problems {
				problems = append(problems, t.Name+": "+p)
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
		return reportDifferences(stdout, problems, fmt.Sprintf("%d topics of Kafka, without problems", len(list)))
	})
}

func applyTopics(ctx context.Context, s settings, stdout io.Writer) error {
	return s.withCluster(ctx, func(ctx context.Context, a *kafka.Admin) error {
		did, err := a.Apply(ctx, s.replication())
		return reportChanges(stdout, did, "topics are as declared", err)
	})
}

func verifyTopics(ctx context.Context, s settings, stdout io.Writer) error {
	return s.withCluster(ctx, func(ctx context.Context, a *kafka.Admin) error {
		differences, err := a.Verify(ctx, s.replication())
		if err != nil {
			return err
		}
		warnings, err := lag.Warnings(ctx, a.Client(), s.replication())
		if err != nil {
			return err
		}
		for _, w := range warnings {
			if _, err := fmt.Fprintln(stdout, "warning:", w); err != nil {
				return err
			}
		}
		lines := make([]string, len(differences))
		for i, d := range differences {
			lines[i] = d.String()
		}
		return reportDifferences(stdout, lines, "topics are as declared")
	})
}

func applyACLs(ctx context.Context, s settings, stdout io.Writer) error {
	return s.withCluster(ctx, func(ctx context.Context, a *kafka.Admin) error {
		did, err := acl.Apply(ctx, a.Client(), s.principals)
		return reportChanges(stdout, did, "rights are as declared", err)
	})
}

func verifyACLs(ctx context.Context, s settings, stdout io.Writer) error {
	return s.withCluster(ctx, func(ctx context.Context, a *kafka.Admin) error {
		lines, err := acl.Verify(ctx, a.Client(), s.principals)
		if err != nil {
			return err
		}
		return reportDifferences(stdout, lines, "rights are as declared")
	})
}
