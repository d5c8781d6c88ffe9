// Package cli is the command line of the workers.
//
// It owns commands and what they print; settings are package config's, help and exit codes
// package cmdline's. Package jobs has the parts of the jobs, and other packages have their
// work. Concurrency: Run is called once.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// exitDiffer is the exit code of a verification that found differences.
const exitDiffer = 3

const verifyHelp = "  It ends with 3 if something is not as declared.\n"

// Run runs the program with an environment like os.Environ's until ctx ends or it fails,
// and returns the exit code.
func Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "workers", Long: "Parley's workers.", Args: cobra.ArbitraryArgs}
	p := &program{Program: cmdline.New(config.Workers, root, "workers"), environ: environ, stderr: stderr}
	root.RunE = func(_ *cobra.Command, args []string) error {
		if _, err := p.settings(); err != nil {
			return err
		}
		if len(args) == 0 {
			return cmdline.Usagef("no command")
		}
		return cmdline.Usagef("unknown command %.40q", args[0])
	}
	root.AddCommand(p.topicCommands()...)
	root.AddCommand(p.runCommand(), p.tableCommands(), p.schemaCommands(), p.redisCommands(), p.restoreCommand())
	opsctl.AddTo(root, "commands for operators, answered by workers with the job ops:", p.operator)
	return p.Run(ctx, args, stdout, stderr)
}

// program is the command line, which reads the settings once a command is chosen.
type program struct {
	*cmdline.Program
	environ []string
	stderr  io.Writer
}

// settings are what an operator can set, in the form in which commands use it.
type settings struct {
	config.Settings
	backend    *backend.Distributed
	principals acl.Principals
}

func (p *program) settings() (s settings, err error) {
	if s.Settings, err = p.Settings(p.environ); err != nil {
		return s, err
	}
	if s.Store != "dynamodb" {
		return s, cmdline.Usagef("store must be dynamodb, not %.40q: the embedded server runs its workers itself", s.Store)
	}
	if s.backend, err = backend.NewDistributed(s.Settings); err != nil {
		return s, cmdline.Usage(err)
	}
	s.principals, err = acl.ParsePrincipals(s.Kafka.Principals)
	return s, cmdline.Usage(err)
}

// replication is the number of replicas of each partition.
func (s settings) replication() int16 { return int16(s.Kafka.Replication) }

// command is a command without arguments, which gets the settings.
func (p *program) command(
	name, short, long string, do func(ctx context.Context, s settings, stdout io.Writer) error,
) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := p.settings()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return cmdline.Usagef("%s takes no arguments, not %.40q", strings.TrimPrefix(c.CommandPath(), "workers "), args[0])
			}
			return do(c.Context(), s, c.OutOrStdout())
		},
	}
}

func (p *program) redisCommands() *cobra.Command {
	return cmdline.Group("redis", "commands on Redis", p.command("acl", "print the rules of the user that Redis needs", "",
		func(_ context.Context, s settings, stdout io.Writer) error {
			_, err := fmt.Fprintln(stdout, strings.Join(routing.ACL(s.Redis.Prefix), " "))
			return err
		}))
}

// Bounds of a command on topics or tables: making a table takes a while, a first
// answer does not.
const (
	adminTime = 10 * time.Minute
	dialTime  = 10 * time.Second
)

func (p *program) tableCommands() *cobra.Command {
	return cmdline.Group("tables", "commands on the tables of DynamoDB",
		p.command("apply", "make the tables of DynamoDB", "", func(ctx context.Context, s settings, stdout io.Writer) error {
			return s.withTables(ctx, func(ctx context.Context, t tables) error {
				did, err := t.Apply(ctx)
				return reportChanges(stdout, did, "tables are as declared", err)
			})
		}),
		p.command("verify", "check the tables of DynamoDB", verifyHelp,
			func(ctx context.Context, s settings, stdout io.Writer) error {
				return s.withTables(ctx, func(ctx context.Context, t tables) error {
					lines, err := t.Verify(ctx)
					if err != nil {
						return err
					}
					return reportDifferences(stdout, lines, "tables are as declared")
				})
			}),
		p.command("terraform", "print the tables of DynamoDB for Terraform", "",
			func(_ context.Context, s settings, stdout io.Writer) error {
				_, err := io.WriteString(stdout, s.backend.Tables.Terraform())
				return err
			}),
	)
}

// tables are the tables of DynamoDB while a command works on them.
type tables interface {
	Apply(context.Context) ([]string, error)
	Verify(context.Context) ([]string, error)
}

func (s settings) withTables(ctx context.Context, f func(context.Context, tables) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	t, err := s.backend.Tables.Open(ctx)
	if err != nil {
		return s.backend.Tables.Explain(err)
	}
	defer t.Close()
	return s.backend.Tables.Explain(f(ctx, t))
}

// printLines prints lines, or one that says that there are none.
func printLines(w io.Writer, lines []string, none string) error {
	if len(lines) == 0 {
		lines = []string{none}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// reportChanges prints what was done, all of it or up to an error.
func reportChanges(w io.Writer, did []string, none string, err error) error {
	if err != nil && len(did) == 0 {
		return err
	}
	return errors.Join(printLines(w, did, none), err)
}

// reportDifferences prints differences, with which the command ends with exitDiffer.
func reportDifferences(w io.Writer, lines []string, none string) error {
	if err := printLines(w, lines, none); err != nil || len(lines) == 0 {
		return err
	}
	return cmdline.Exit(exitDiffer)
}

// distinct returns the different items of a list, sorted.
func distinct(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
