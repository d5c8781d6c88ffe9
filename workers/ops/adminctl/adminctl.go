// Package adminctl is the command line of administration: users, their sessions, chats,
// service accounts, limits, and the audit. Both programs have it.
//
// It owns flags and output. All work is done by the services of parley.admin.v1, in a
// running server or in workers with the job ops, which are spoken to with an operator's
// token, as the other commands of operators do. Concurrency: commands are run one at a time.
package adminctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// AddTo adds the commands to a program's tree, which has those of package opsctl: they are
// one group, and the audit's go below its audit. config says where a server is, once a
// command is chosen.
func AddTo(root *cobra.Command, config func() (opsctl.Config, error)) {
	p := &program{config: config}
	for _, g := range []*cobra.Command{p.users(), p.sessions(), p.services(), p.chats(), p.limits()} {
		g.GroupID = opsctl.GroupID
		root.AddCommand(g)
	}
	for _, c := range root.Commands() {
		if c.Name() != "audit" {
			continue
		}
		for _, sub := range []*cobra.Command{p.auditList(), p.auditExport()} {
			sub.SetHelpFunc(root.HelpFunc()) // its parent's knows flags of its own only
			c.AddCommand(sub)
		}
	}
}

// program makes commands.
type program struct {
	config func() (opsctl.Config, error)
}

// call is a command that runs.
type call struct {
	ctx  context.Context //nolint:containedctx // of the one command that this is
	cfg  opsctl.Config
	http *http.Client
	url  string
	with connect.ClientOption // the token
	json bool
	args []string
}

// spec describes a command.
type spec struct {
	use, short, long string
	args             int // exactly
	flags            func(*pflag.FlagSet)
	run              func(*call) error
}

// command makes a command with the flags that all have.
func (p *program) command(s spec) *cobra.Command {
	c := &cobra.Command{Use: s.use, Short: s.short, Long: s.long, Args: cobra.ArbitraryArgs}
	fs := c.Flags()
	address := fs.String("ops-address", "", "`host:port` where operators are served (PARLEY_OPS_ADDRESS)")
	operator := fs.String("operator", "", "`name` for the audit, unless PARLEY_OPS_TOKEN holds a token (PARLEY_OPERATOR)")
	asJSON := fs.Bool("json", false, "print JSON, one object a line")
	if s.flags != nil {
		s.flags(fs)
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return cmdline.Usagef("%s: %w", nameOf(c), err) })
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) != s.args {
			_, want, _ := strings.Cut(s.use, " ")
			if want == "" {
				want = "no arguments"
			}
			return cmdline.Usagef("%s takes %s", nameOf(c), want)
		}
		cfg, err := p.config()
		if err != nil {
			return err
		}
		if fs.Changed("ops-address") {
			cfg.Address = *address
		}
		if fs.Changed("operator") {
			cfg.Operator = *operator
		}
		run := &call{ctx: c.Context(), cfg: cfg, json: *asJSON, args: args}
		if err := run.dial(); err != nil {
			return err
		}
		return told(s.run(run))
	}
	return c
}

// nameOf is the words of a command without the program's.
func nameOf(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") }

// dial prepares the calls of a command.
func (c *call) dial() error {
	if _, _, err := net.SplitHostPort(c.cfg.Address); err != nil {
		return cmdline.Usagef("ops-address must be host:port, not %.100q", c.cfg.Address)
	}
	tokens := bearer.New(c.cfg.Tokens(c.cfg.OperatorName()))
	if _, err := tokens.Token(c.ctx, false); err != nil {
		return err
	}
	c.http, c.url = c.cfg.HTTP(c.cfg.Address)
	c.with = connect.WithInterceptors(tokens)
	return nil
}

// told puts an error of a call into one line.
func told(err error) error {
	var usage cmdline.UsageError
	switch {
	case err == nil, errors.As(err, &usage):
		return err
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return errors.New("the server does not have this: it is of another release, or has no such part of identity")
	}
	return errors.New(opsctl.Explain(err))
}

// change has the flags of a command that changes something.
type change struct {
	reason  string
	execute bool
}

// flags declares them. Without a reason there is only the other one.
func (f *change) flags(fs *pflag.FlagSet) {
	fs.StringVar(&f.reason, "reason", "", "why, for the audit: `text` of at least 3 characters")
	f.executeFlag(fs)
}

func (f *change) executeFlag(fs *pflag.FlagSet) {
	fs.BoolVar(&f.execute, "execute", false, "do it; otherwise report what would be done")
}

// done prints what was done, or that nothing was.
func (c *call) done(f *change, format string, args ...any) error {
	if !f.execute {
		format, args = "nothing was changed; add --execute to do it", nil
	}
	_, err := fmt.Fprintf(c.cfg.Stdout, format+"\n", args...)
	return err
}

// printJSON prints a message as JSON if the command line asks for it, and reports whether it
// did.
func (c *call) printJSON(m proto.Message) bool {
	if !c.json {
		return false
	}
	cmdline.PrintJSON(c.cfg.Stdout, m)
	return true
}

// table prints rows of columns that are separated by tabs.
func (c *call) table(rows func(w io.Writer)) error {
	w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
	rows(w)
	return w.Flush()
}

// How values are written, as in the other commands of operators.
var (
	safe       = cmdline.Safe
	formatTime = cmdline.FormatTime
)

// word is the name of an enum's value without that of its type.
func word(s fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), prefix), "_", " "))
}

// timeFlag declares a flag that takes a time, or how long ago it was.
func timeFlag(fs *pflag.FlagSet, to **timestamppb.Timestamp, name, usage string) {
	fs.Func(name, usage+": `time` is RFC 3339, or an age such as 90m", func(s string) error {
		if t, err := time.Parse(time.RFC3339, s); err == nil {
			*to = timestamppb.New(t)
			return nil
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return errors.New("must be a time such as 2030-01-02T15:04:05Z or an age such as 90m")
		}
		*to = timestamppb.New(time.Now().Add(-d))
		return nil
	})
}
