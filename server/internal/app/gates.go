package app

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/cmdline"
	"github.com/parley-chat/parley/server/internal/load/gates"
)

const gatesHelp = `  It starts servers of its own, one for each gate, with data to throw away, and drives their durable topics. Gates of a
  rate double it until a threshold breaks, and say the limit. Without names all run, which takes about half an hour:
%s  A gate holds; or it is broken; or its figure is not reached because the machine has no processor or disk left for
  it. Messages that do not arrive break a gate on any machine. The last row of the table, W08, decides on a release.
  Exit codes: 0 no gate is broken; 1 one is, or nothing could be said; 2 a mistake in the line.
`

func (p *commandLine) gatesCommand() *cobra.Command {
	var o gates.Options
	var dir string
	c := &cobra.Command{
		Use: "gates [GATE...] [--flags]", Short: "search what durable topics hold on this machine",
		Args: cobra.ArbitraryArgs, Long: gates.Help(gatesHelp),
	}
	c.Flags().BoolVar(&o.Short, "short", false, "small rates and short times: whether it works, not how far")
	c.Flags().DurationVar(&o.Hold, "hold", 10*time.Second, "for which a claimed rate is held; others for a tenth of it")
	c.Flags().BoolVar(&o.All, "all", false, "a figure that is not reached breaks its gate, too")
	c.Flags().StringVar(&dir, "dir", "", "directory in which the servers have their data; by default the system's for such files")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cmdline.Usagef("gates: %w", err) })
	c.RunE = func(c *cobra.Command, args []string) error {
		o.Gates = args
		if err := o.Check(); err != nil {
			return cmdline.Usage(err)
		}
		program, err := os.Executable()
		if err != nil {
			return err
		}
		return gates.Run(c.Context(), gates.Config{Program: program, Dir: dir, Stdout: p.stdout, Notes: p.stderr}, o)
	}
	return c
}
