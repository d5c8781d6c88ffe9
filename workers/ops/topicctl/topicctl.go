// Package topicctl is the command line of durable topics: make them, publish, follow, and
// look after their groups.
//
// It owns flags and output. All work is done by a running server, which is spoken to with an
// operator's token, as the other commands of operators do, or with that of a user, who may do with
// a topic what its bindings say. Concurrency: commands are run one at a time.
//
// It is one package because all commands share one way to the server, flags and tables.
package topicctl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// Command makes the commands on topics. config says where a server is, once one is chosen.
func Command(config func() (opsctl.Config, error)) *cobra.Command {
	p := &program{config: config}
	return cmdline.Group("topics", "commands on durable topics",
		p.create(), p.list(), p.describe(), p.remove(), p.publish(), p.tail(), p.status(),
		p.get(), p.browse(), p.purge(),
		p.groups(), p.subscribe(), p.updateSubscription(), p.pause(), p.resume(), p.cancel(), p.seek(), p.unpark(),
		p.bindings(), p.backfill(),
		p.health(), p.monitors(), p.removeGroup(), p.resurrect(), p.forceComplete(), p.jobs(), p.audit())
}

// program makes commands.
type program struct {
	config func() (opsctl.Config, error)
}

// call is a command that runs.
type call struct {
	ctx    context.Context //nolint:containedctx // of the one command that this is
	cfg    opsctl.Config
	client *topic.Client
	admin  topicv1connect.TopicAdminServiceClient
	json   bool
	args   []string
}

func (c *call) topics() topicv1connect.TopicServiceClient { return c.client.Topics() }
func (c *call) subscriptions() topicv1connect.SubscriptionServiceClient {
	return c.client.Subscriptions()
}

// spec describes a command.
type spec struct {
	under            string // the group of commands that it is in, and a space
	use, short, long string
	args             int  // at least
	more             bool // arguments after these
	operators        bool // users may not do it
	flags            func(*pflag.FlagSet)
	run              func(*call) error
}

// command makes a command with the flags that all have.
func (p *program) command(s spec) *cobra.Command {
	c := &cobra.Command{Use: s.use, Short: s.short, Long: s.long, Args: cobra.ArbitraryArgs}
	fs := c.Flags()
	address := fs.String("ops-address", "", "`host:port` where operators are served (PARLEY_OPS_ADDRESS)")
	operator := fs.String("operator", "", "`name` for the audit, unless PARLEY_OPS_TOKEN holds a token (PARLEY_OPERATOR)")
	var user login
	fs.StringVar(&user.url, "url", "", "`URL` of the server, with --token-file")
	fs.StringVar(&user.tokenFile, "token-file", "", "`file` that holds a user's access token: act as this user, not as an operator")
	asJSON := fs.Bool("json", false, "print JSON, one object a line")
	if s.flags != nil {
		s.flags(fs)
	}
	name := "topics " + s.under + c.Name()
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cmdline.Usagef("%s: %w", name, err) })
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) < s.args || len(args) > s.args && !s.more {
			_, want, _ := strings.Cut(s.use, " ")
			return cmdline.Usagef("%s takes %s", name, want)
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
		switch {
		case user == login{}:
			err = run.dial()
		case s.operators:
			err = cmdline.Usagef("%s is for operators: without url and token-file", name)
		default:
			err = run.dialAs(user)
		}
		if err != nil {
			return err
		}
		return told(s.run(run))
	}
	return c
}

// login is where a user has a server, and the token.
type login struct{ url, tokenFile string }

// dialAs makes the client of a call that a user makes.
func (c *call) dialAs(l login) error {
	if l.url == "" || l.tokenFile == "" {
		return cmdline.Usagef("url and token-file go together")
	}
	base, err := cmdline.BaseURL(l.url)
	if err != nil {
		return err
	}
	c.client, err = topic.Dial(topic.Config{BaseURL: base, Token: bearer.FromFile(l.tokenFile)})
	return err
}

// dial makes the clients of a call that an operator makes.
func (c *call) dial() (err error) {
	if _, _, err := net.SplitHostPort(c.cfg.Address); err != nil {
		return cmdline.Usagef("ops-address must be host:port, not %.100q", c.cfg.Address)
	}
	tokens := c.cfg.Tokens(c.cfg.OperatorName())
	if _, err := tokens(c.ctx, false); err != nil {
		return err
	}
	hc, url := c.cfg.HTTP(c.cfg.Address)
	c.admin = topicv1connect.NewTopicAdminServiceClient(hc, url, connect.WithInterceptors(bearer.New(tokens)))
	c.client, err = topic.Dial(topic.Config{BaseURL: url, Token: tokens, HTTP: hc})
	return err
}

// told puts an error of a call into one line.
func told(err error) error {
	var usage cmdline.UsageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	text := opsctl.Explain(err)
	if r := topic.Reason(err); r != "" && !strings.Contains(text, r) {
		text = fmt.Sprintf("%s (%s)", text, r)
	}
	return errors.New(text)
}

// executeFlag declares the flag without which a command changes nothing.
func executeFlag(fs *pflag.FlagSet, execute *bool) {
	fs.BoolVar(execute, "execute", false, "do it; otherwise report what would be done")
}

// dryRun is the last line of a command without --execute.
const dryRun = "nothing was changed; add --execute to do it"

func (c *call) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.cfg.Stdout, format+"\n", args...)
	return err
}
