// Package terminal has the commands of people, who look at a server from a terminal as any
// client does.
//
// It owns flags, whose token is used, and what is printed. The server decides what a user
// sees, and package tail how streams are followed. Concurrency: commands are run one at a
// time.
package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/loopback"
)

// Config says where a command finds the server that the settings are of.
type Config struct {
	Listen         string                       // its address, perhaps all of this machine's
	Issue          func(string) (string, error) // makes a token for a user with its key
	Stdout, Stderr io.Writer
}

const loginHelp = `  The user's token is made with the key in the data directory, as with the command token, and goes to this machine
  only; alice and bob are there to try it with. Whoever has a token puts it into a file and names no user.
`

// login is the user's token and server, by flags that all commands have.
type login struct {
	url, tokenFile string
}

func (l *login) flags(fs *pflag.FlagSet) {
	fs.StringVar(&l.url, "url", "", "`URL` of the server, by default http:// and the address that it listens on")
	fs.StringVar(&l.tokenFile, "token-file", "", "`file` that holds an access token, which is read again when it is refused")
}

// base is where the server is.
func (l *login) base(listen string) (string, error) {
	if l.url == "" {
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			return "", cmdline.Usage(err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		return "http://" + net.JoinHostPort(host, port), nil
	}
	return cmdline.BaseURL(l.url)
}

// source is where the token comes from: the file, or the key for the user who is named.
func (l *login) source(cfg Config, base string, users []string) (bearer.Source, error) {
	switch {
	case len(users) > 1:
		return nil, cmdline.Usagef("one user is enough")
	case len(users) == 1 && l.tokenFile != "":
		return nil, cmdline.Usagef("the token says who the user is: name a user or a token file")
	case len(users) == 0 && l.tokenFile == "":
		return nil, cmdline.Usagef("a user is needed, such as alice, or --token-file")
	case l.tokenFile != "":
		return bearer.FromFile(l.tokenFile), nil
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, cmdline.Usage(err)
	}
	if !loopback.Is(u.Hostname()) {
		return nil, cmdline.Usagef("tokens made with the key go to this machine only: give %s one in a --token-file", u.Host)
	}
	return func(context.Context, bool) (string, error) { return cfg.Issue(users[0]) }, nil
}

// command makes a command for one user.
func command(
	c *cobra.Command, config func() (Config, error), run func(context.Context, Config, string, bearer.Source) error,
) *cobra.Command {
	var l login
	c.Args = cobra.ArbitraryArgs
	l.flags(c.Flags())
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cmdline.Usagef("%s: %w", c.Name(), err) })
	c.RunE = func(c *cobra.Command, users []string) error {
		cfg, err := config()
		if err != nil {
			return err
		}
		base, err := l.base(cfg.Listen)
		if err != nil {
			return err
		}
		token, err := l.source(cfg, base, users)
		if err != nil {
			return err
		}
		if _, err := token(c.Context(), false); err != nil {
			return oneLineError(err, base)
		}
		return oneLineError(run(c.Context(), cfg, base, token), base)
	}
	return c
}

// oneLineError puts an error of a call into one line.
func oneLineError(err error, base string) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("no server answers at %s (%w): is it running? --url says where", base, op.Err)
	}
	var remote *connect.Error
	if errors.As(err, &remote) && remote.Message() != "" {
		return errors.New(strings.ReplaceAll(remote.Message(), "\n", " "))
	}
	return err
}
