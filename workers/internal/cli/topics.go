package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/cmdline"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/kafka/capacity"
	"github.com/parley-chat/parley/server/kafka/dial"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/terraform"
	"github.com/parley-chat/parley/server/kafka/versions"
)

func (p *program) topicCommands() *cobra.Command {
	rights := p.command("acl", "print who may do what on Kafka", "", func(_ context.Context, s settings, stdout io.Writer) error {
		_, err := fmt.Fprintln(stdout, strings.Join(acl.Commands(s.principals), "\n"))
		return err
	})
	rights.AddCommand(
		p.command("apply", "make the ACLs of Kafka", "", applyACLs),
		p.command("verify", "check the ACLs of Kafka", verifyHelp, verifyACLs),
	)
	return cmdline.Group("topics", "commands on the topics of Kafka",
		p.command("apply", "make the topics of Kafka", "", applyTopics),
		p.command("verify", "check the topics of Kafka", verifyHelp+"  It also warns of brokers whose own settings are weak, which is no difference.\n", verifyTopics),
		p.command("terraform", "print the topics of Kafka for Terraform", "", func(_ context.Context, s settings, stdout io.Writer) error {
			_, err := io.WriteString(stdout, terraform.Topics()+acl.Terraform(s.principals))
			return err
		}),
		p.command("capacity", "print what the topics are made for", "", func(_ context.Context, _ settings, stdout io.Writer) error {
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
