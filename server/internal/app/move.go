package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/move"
)

const exportHelp = `  It writes all that the installation has into one file, or to standard output (-): chats, users, sessions,
  durable topics with their groups' positions, and the keys. No server may run. With store dynamodb it closes the
  tables for all processes, and waits until each has noticed; --cancel opens them again. An export that was cut off
  continues with the same command. It has the keys of the installation: store it as you store them.
`

const importHelp = `  It reads an export from a file or from standard input (-) and puts it into an empty installation: a data
  directory (--data-dir) that is missing or empty, or with store dynamodb tables and topics that were just made. An
  import that was cut off continues with the same command. Everything is read back before a server can start with it.
`

func (p *commandLine) exportCommand() *cobra.Command {
	c := &cobra.Command{Use: "export FILE|-", Short: "write an installation that does not run into one file",
		Long: exportHelp, Args: cobra.ArbitraryArgs}
	wait := c.Flags().Duration("wait", time.Minute, "`time` until every process has noticed that the tables are closed")
	undo := c.Flags().Bool("cancel", false, "open the tables again that an export has closed")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.config()
		if err != nil {
			return err
		}
		switch {
		case *undo && len(args) == 0:
			if err := backend.CancelExport(c.Context(), cfg.Backend); err != nil {
				return err
			}
			fmt.Fprintln(p.stderr, "the tables are open again: start servers and workers")
			return nil
		case *undo || len(args) != 1 || *wait <= 0:
			return cmdline.Usagef("export needs one file, or - for standard output; --cancel needs none")
		}
		return p.export(c.Context(), cfg, args[0], *wait)
	}
	return c
}

func (p *commandLine) importCommand() *cobra.Command {
	return &cobra.Command{Use: "import FILE|-", Short: "put an export into an empty installation", Long: importHelp,
		Args: cobra.ArbitraryArgs, RunE: func(c *cobra.Command, args []string) error {
			cfg, err := p.config()
			if err != nil {
				return err
			}
			if len(args) != 1 {
				return cmdline.Usagef("import needs one file, or - for standard input")
			}
			return p.load(c.Context(), cfg, args[0])
		}}
}

func (p *commandLine) export(ctx context.Context, cfg Config, to string, wait time.Duration) (err error) {
	key, err := os.ReadFile(cfg.keyPath())
	if err != nil {
		return cfg.explainNoKey(err)
	}
	bc := cfg.Backend
	bc.Logger = telemetry.NewLogger(p.stderr, cfg.LogFormat == "json")
	m := p.moving(cfg)
	m.Drain = wait
	src, closing, err := backend.OpenExport(ctx, bc, m)
	if errors.Is(err, backend.ErrRunning) {
		return fmt.Errorf("%w: stop the server before an export", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	src.Files = []move.File{{Name: move.KeyFile, Content: key}}
	var r move.Report
	if to == "-" {
		r, err = move.Stream(ctx, src, p.stdout, p.steps())
	} else {
		r, err = move.ToFile(ctx, src, to, p.steps())
	}
	if err != nil {
		return err
	}
	p.report(to, "exported", r)
	return nil
}

func (p *commandLine) load(ctx context.Context, cfg Config, from string) (err error) {
	in := io.Reader(os.Stdin)
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	bc := cfg.Backend
	bc.Logger = telemetry.NewLogger(p.stderr, cfg.LogFormat == "json")
	to, closing, err := backend.OpenImport(ctx, bc, p.moving(cfg))
	if errors.Is(err, backend.ErrImported) {
		fmt.Fprintf(p.stderr, "the import into %s was complete: start the server\n", absolute(cfg.DataDir))
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	r, err := move.Import(ctx, in, to, p.steps())
	switch {
	case errors.Is(err, move.ErrOther):
		return fmt.Errorf("%w: import that one, or empty %s", err, absolute(cfg.DataDir))
	case errors.Is(err, move.ErrDiffers):
		return fmt.Errorf("%w: empty %s, check its disk, and import it again", err, absolute(cfg.DataDir))
	case err != nil:
		return err
	}
	p.report(from, "imported", r)
	return nil
}

func (p *commandLine) moving(cfg Config) backend.Moving {
	return backend.Moving{KeyFile: cfg.KeyFile, TopicSlots: cfg.TopicSlots, Replication: cfg.Kafka.Replication,
		Search: cfg.searchTargets, Waits: func(d time.Duration) {
			fmt.Fprintf(p.stderr, "the tables are closed; waiting %d s until every process has noticed\n", int(d.Seconds()))
		}}
}

// stepEvery is how often a command says how far it is.
const stepEvery = 5 * time.Second

// steps says now and then how far a command is.
func (p *commandLine) steps() move.Step {
	last := time.Now()
	return func(section string, entries int64) {
		if time.Since(last) > stepEvery {
			last = time.Now()
			fmt.Fprintf(p.stderr, "%s: %d\n", section, entries)
		}
	}
}

// report prints what was done to standard error; standard output may be the export itself.
func (p *commandLine) report(name, did string, r move.Report) {
	again := ""
	if r.Resumed {
		again = ", continued from where it was cut off"
	}
	fmt.Fprintf(p.stderr, "%s: %s %d rows and records of generation %s, %s%s\n", name, did, r.Entries(),
		r.Header.History[0].Generation, size(uint64(r.Bytes)), again)
}
