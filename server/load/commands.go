package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/load/gates"
	"github.com/parley-chat/parley/server/load/scenario"
)

// tokenTTL is how long the tokens of the load's users are good.
const tokenTTL = 24 * time.Hour

const title = `Load test of Parley.

A scenario makes users and chats of its own, drives a running server with them, checks that each message arrives once
at each member, and prints latencies and what the server took. The users and chats stay: use a server with data to
throw away. Tokens are made with the key in the data directory, as with the server's command token, or come from
--token-file. Exit codes: 0 everything arrived; 1 something did not, or the test could not be done; 2 a mistake in
the line.`

const gatesHelp = `  It starts servers of its own, one for each gate, with data to throw away, and drives their durable topics. Gates of a
  rate double it until a threshold breaks, and say the limit. Without names all run, which takes about half an hour:
%s  A gate holds; or it is broken; or its figure is not reached because the machine has no processor or disk left for
  it. Messages that do not arrive break a gate on any machine. The last row of the table, W08, decides on a release.
  Exit codes: 0 no gate is broken; 1 one is, or nothing could be said; 2 a mistake in the line.
`

// program is the load test's command line.
type program struct {
	*cmdline.Program
	environ        []string
	stdout, stderr io.Writer
}

// run runs the program with an environment like os.Environ's, and returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "load", Long: title, Args: cobra.ArbitraryArgs}
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmdline.Usagef("load needs a scenario")
		}
		return cmdline.Usagef("unknown scenario %.40q: there are %s", args[0], strings.Join(scenario.Scenarios(), ", "))
	}
	p := &program{environ: environ, stdout: stdout, stderr: stderr}
	p.Program = cmdline.New(config.Load, root, "load")
	for _, name := range scenario.Scenarios() {
		root.AddCommand(p.measure(name))
	}
	root.AddCommand(p.gates())
	for _, c := range root.Commands() { // their flags are no settings, which go before the command
		c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return cmdline.Usagef("%s: %w", c.Name(), err) })
	}
	return p.Program.Run(ctx, args, stdout, stderr)
}

func (p *program) measure(name string) *cobra.Command {
	c := &cobra.Command{Use: name, Short: scenario.About(name), Args: cobra.NoArgs}
	o := scenario.New(name, c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := p.Settings(p.environ)
		if err != nil {
			return err
		}
		if !c.Flags().Changed("addr") {
			o.Address = s.Listen
		}
		if err := o.Parsed(c.Flags()); err != nil {
			return cmdline.Usage(err)
		}
		return scenario.Run(c.Context(), scenario.Config{Issue: issuer(s), DataDir: embedded(s), Stdout: p.stdout}, o)
	}
	return c
}

// issuer makes tokens with the key of a server.
func issuer(s config.Settings) func(user string) (string, error) {
	path := auth.KeyPath(s.KeyFile, s.DataDir)
	return auth.IssueFrom(path, tokenTTL, func(err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no key is in %s: --data-dir says where the server has its data, and --token-file goes without", path)
		}
		return err
	})
}

// embedded is the directory of a server that has its data on this machine.
func embedded(s config.Settings) string {
	if _, err := os.Stat(filepath.Join(s.DataDir, "store")); err != nil {
		return ""
	}
	return s.DataDir
}

func (p *program) gates() *cobra.Command {
	var o gates.Options
	var server, dir string
	c := &cobra.Command{
		Use: "gates [GATE...]", Short: "search what durable topics hold on this machine", Args: cobra.ArbitraryArgs,
		Long: gates.Help(gatesHelp),
	}
	c.Flags().StringVar(&server, "server", "", "the server's program, such as go build -o FILE ./server makes; needed")
	c.Flags().BoolVar(&o.Short, "short", false, "small rates and short times: whether it works, not how far")
	c.Flags().DurationVar(&o.Hold, "hold", 10*time.Second, "for which a claimed rate is held; others for a tenth of it")
	c.Flags().BoolVar(&o.All, "all", false, "a figure that is not reached breaks its gate, too")
	c.Flags().StringVar(&dir, "dir", "", "directory in which the servers have their data; by default the system's for such files")
	c.RunE = func(c *cobra.Command, names []string) error {
		o.Gates = names
		if err := o.Check(); err != nil {
			return cmdline.Usage(err)
		}
		if server == "" {
			return cmdline.Usagef("gates needs --server FILE, the server's program: go build -o FILE ./server makes it")
		}
		return gates.Run(c.Context(), gates.Config{Program: server, Dir: dir, Stdout: p.stdout, Notes: p.stderr}, o)
	}
	return c
}
