package app

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/client/blackbox"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

const conformanceHelp = `  It starts a server with data of its own, a proxy with faults in front of it, and COMMAND, the client under
  test. The client reads commands and says what it shows, as lines of JSON: see /docs/write-a-client. Each
  scenario compares what the client shows with what the server has stored. The exit code is 1 if one fails.
`

// conformanceCommand tests a client in any language.
func (p *commandLine) conformanceCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "conformance [--flags] -- COMMAND [ARG…]", Short: "test a client in any language by what it shows",
		Long: conformanceHelp, Args: cobra.ArbitraryArgs,
	}
	only := c.Flags().String("only", "", "run the scenarios whose names match a regular `expression`")
	seed := c.Flags().Uint64("seed", 0, "`seed` of the faults; 0: a random one")
	timeout := c.Flags().Duration("timeout", time.Minute, "how `long` the client may take to show what is stored")
	parallel := c.Flags().Int("parallel", 4, "`how` many scenarios run at a time")
	long := c.Flags().Bool("long", false, "also run scenarios that take more than a minute")
	list := c.Flags().Bool("list", false, "list the scenarios and what a client must show")
	c.RunE = func(c *cobra.Command, args []string) error {
		expression, err := regexp.Compile(*only)
		if err != nil {
			return cmdline.Usagef("--only: %v", err)
		}
		if *list {
			for _, s := range blackbox.Scenarios() {
				if expression.MatchString(s.Name) {
					fmt.Fprintf(p.stdout, "%s\n    %s\n", s.Name, s.Must)
				}
			}
			return nil
		}
		if len(args) == 0 || *timeout <= 0 {
			return cmdline.Usagef("conformance needs the command of a client after --, and a --timeout above 0")
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		if *seed == 0 {
			*seed = uint64(time.Now().UnixMilli())
		}
		outcomes, err := blackbox.Run(c.Context(), blackbox.Config{Server: self, Client: args, Only: expression, Seed: *seed,
			Timeout: *timeout, Parallel: *parallel, Long: *long, Out: p.stdout, Log: p.stderr})
		for _, o := range outcomes {
			if o.Err != nil {
				return cmdline.ExitCode(cmdline.ExitFailed)
			}
		}
		return err
	}
	return c
}
