package app

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/cmdline"
	"github.com/parley-chat/parley/server/internal/load"
)

const loadHelp = `  It makes users and chats of its own, drives a running server with them, checks that each message
  arrives once at each member, and prints latencies and what the server took. The users and chats stay: use a server
  with data to throw away. Scenarios:
%s  Tokens are made with the key in the data directory, as with the command token, or come from --token-file.
  Exit codes: 0 everything arrived; 1 something did not, or the test could not be done; 2 a mistake in the line.
`

func (p *commandLine) loadCommand() *cobra.Command {
	var o load.Options
	c := &cobra.Command{
		Use: "load SCENARIO [--flags]", Short: "drive a running server and measure it", Args: cobra.ArbitraryArgs,
		Long: load.Help(loadHelp),
	}
	load.Flags(c.Flags(), &o, DefaultListen)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cmdline.Usagef("load: %w", err) })
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.config()
		if err != nil {
			return err
		}
		if len(args) != 1 {
			return cmdline.Usagef("load needs one scenario")
		}
		if !c.Flags().Changed("addr") {
			o.Address = cfg.Listen
		}
		if err := o.Parsed(c.Flags(), args[0]); err != nil {
			return cmdline.Usage(err)
		}
		if err := o.Check(); err != nil {
			return cmdline.Usage(err)
		}
		return load.Run(c.Context(), load.Config{Issue: cfg.issuer(), DataDir: cfg.loadedDir(), Stdout: p.stdout}, o)
	}
	return c
}

// issuer makes tokens with the key of a server, which is read when the first one is needed.
func (c Config) issuer() func(string) (string, error) {
	var key *auth.Key
	return func(user string) (string, error) {
		if key == nil {
			var err error
			if key, err = c.readKey(); err != nil {
				return "", c.explainNoKey(err)
			}
		}
		return key.Issue(user, time.Now(), tokenTTL)
	}
}

// loadedDir is the directory of an embedded server's data, if it is there.
func (c Config) loadedDir() string {
	if _, err := os.Stat(c.DataDir); c.distributed() || err != nil {
		return ""
	}
	return c.DataDir
}
