package opsctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// errLeft ends a command that did not do some of what was selected; its output says what.
const errLeft = cmdline.Exit(3)

// program makes commands.
type program struct {
	config   func() (Config, error)
	explain  func(error) string // puts an error of a call into one line
	forUsers bool               // commands take a user's token, too
}

// unbounded is how many arguments may follow if there is no bound.
const unbounded = math.MaxInt32

// spec describes a command.
type spec struct {
	use, short, long string
	args             int    // at least
	more             int    // that may follow
	needs            string // what is missing in a line with other arguments; by default use says it
	operators        bool   // users may not do it
	local            bool   // no server is needed
	flags            func(*pflag.FlagSet)
	run              func(*call) error
}

// call is a command that runs.
type call struct {
	ctx            context.Context //nolint:containedctx // of the one command that this is
	cfg            Config
	stdout, stderr io.Writer
	args           []string
	json           bool
	misuse         error // is returned for arguments that the command does not take

	token bearer.Source
	http  connect.HTTPClient // nil for a user
	url   string
	with  connect.ClientOption // the token
	topic *topic.Client        // of a command on topics
}

// command makes a command with the flags that all have.
func (p *program) command(s spec) *cobra.Command {
	c := &cobra.Command{Use: s.use, Short: s.short, Long: s.long, Args: cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions}
	fs := c.Flags()
	address := fs.String("ops-address", "", "`host:port` where operators are served (PARLEY_OPS_ADDRESS)")
	operator := fs.String("operator", "", "`name` for the audit, unless PARLEY_OPS_TOKEN holds a token (PARLEY_OPERATOR)")
	asJSON := fs.Bool("json", false, "print JSON, one object a line")
	var user login
	if p.forUsers {
		user.flags(fs)
	}
	if s.flags != nil {
		s.flags(fs)
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := new(pflag.NotExistError); errors.As(err, &unknown) {
			err = fmt.Errorf("%w; an argument that begins with a dash goes behind --", err)
		}
		return cmdline.Usagef("%s: %w", nameOf(c), err)
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		run := &call{ctx: c.Context(), stdout: c.OutOrStdout(), stderr: c.ErrOrStderr(), args: args, json: *asJSON,
			misuse: s.misuse(nameOf(c), args)}
		if len(args) < s.args || len(args)-s.args > s.more {
			return run.misuse
		}
		var err error
		if run.cfg, err = p.config(); err != nil {
			return err
		}
		if fs.Changed("ops-address") {
			run.cfg.Address = *address
		}
		if fs.Changed("operator") {
			run.cfg.Operator = *operator
		}
		switch {
		case s.local:
		case user == login{}:
			err = run.dial()
		case s.operators:
			err = cmdline.Usagef("%s is for operators: without url and token-file", nameOf(c))
		default:
			err = run.dialAs(user)
		}
		if err != nil {
			return err
		}
		return p.oneLine(s.run(run))
	}
	return c
}

// nameOf is the words of a command without the program's.
func nameOf(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") }

// misuse says what a command of a name takes.
func (s spec) misuse(name string, args []string) error {
	_, want, _ := strings.Cut(s.use, " ")
	switch {
	case s.needs != "":
		return cmdline.Usagef("%s needs %s", name, s.needs)
	case want == "" && len(args) > 0:
		return cmdline.Usagef("%s takes no arguments, not %.40q", name, args[0])
	}
	return cmdline.Usagef("%s takes %s", name, want)
}

// oneLine puts an error of a call into one line.
func (p *program) oneLine(err error) error {
	var usage cmdline.UsageError
	var exit cmdline.Exit
	if err == nil || errors.As(err, &usage) || errors.As(err, &exit) {
		return err
	}
	return errors.New(p.explain(err))
}

// dial prepares the calls of an operator.
func (c *call) dial() error {
	if _, _, err := net.SplitHostPort(c.cfg.Address); err != nil {
		return cmdline.Usagef("ops-address must be host:port, not %.100q", c.cfg.Address)
	}
	c.token = c.cfg.Tokens(c.cfg.OperatorName())
	tokens := bearer.New(c.token)
	if _, err := tokens.Token(c.ctx, false); err != nil {
		return err
	}
	c.http, c.url = c.cfg.HTTP(c.cfg.Address)
	c.with = connect.WithInterceptors(tokens)
	return nil
}

// login is where a user has a server, and the token.
type login struct{ url, tokenFile string }

func (l *login) flags(fs *pflag.FlagSet) {
	fs.StringVar(&l.url, "url", "", "`URL` of the server, with --token-file")
	fs.StringVar(&l.tokenFile, "token-file", "", "`file` that holds a user's access token: act as this user, not as an operator")
}

// dialAs prepares the calls of a user.
func (c *call) dialAs(l login) (err error) {
	if l.url == "" || l.tokenFile == "" {
		return cmdline.Usagef("url and token-file go together")
	}
	c.url, err = cmdline.BaseURL(l.url)
	c.token = bearer.FromFile(l.tokenFile)
	return err
}
