package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/internal/terminal"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// tokenTTL is how long a token is good that is printed.
const tokenTTL = 24 * time.Hour

// Run runs the program with an environment like os.Environ's until ctx ends or it fails,
// and returns the exit code.
func Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	p := &commandLine{environ: environ, stdout: stdout, stderr: stderr}
	root := &cobra.Command{Use: "server", Short: "run the server", Long: "Parley: a chat server.",
		Args: cobra.ArbitraryArgs, RunE: p.run}
	p.Program = cmdline.New(config.Server, root, "parley")
	root.AddCommand(p.tokenCommand(), p.keysCommand(), p.backupCommand(), p.restoreCommand(), p.exportCommand(),
		p.importCommand(), p.checkCommand(), p.conformanceCommand(), p.kafkaCommand(), terminal.Chat(p.person),
		terminal.Tail(p.person))
	opsctl.AddTo(root, "commands for operators, while the server runs:", p.operator)
	opsctl.AddTopics(root, p.operator)
	return p.Program.Run(ctx, args, stdout, stderr)
}

// commandLine reads the settings once a command is chosen.
type commandLine struct {
	*cmdline.Program
	environ        []string
	stdout, stderr io.Writer
}

func (p *commandLine) config() (Config, error) {
	s, err := p.Settings(p.environ)
	if err != nil {
		return Config{}, err
	}
	c, err := newConfig(s)
	return c, cmdline.Usage(err)
}

func (p *commandLine) run(root *cobra.Command, args []string) error {
	cfg, err := p.config()
	if err != nil {
		return err
	}
	if len(args) > 0 {
		return cmdline.Usagef("unknown command %.40q", args[0])
	}
	if cfg, err = cfg.withLinkTLS(); err != nil {
		return err
	}
	memory.Tune(cfg.GCPercent, cfg.MemoryPercent, p.environ)
	return serve(root.Context(), cfg, p.stdout, p.stderr)
}

// operator says where a command of an operator finds the server, and as whom. A running server
// answers it: the data directory is the server's alone.
func (p *commandLine) operator() (opsctl.Config, error) {
	cfg, err := p.config()
	if err == nil {
		cfg, err = cfg.withLinkTLS()
	}
	return opsctl.Config{
		Address: cfg.Operators.Address, Operator: cfg.Operators.Name, Token: cfg.Operators.Token.Reveal(),
		Key: cfg.readKey, TLS: cfg.linkTLS,
	}, err
}

func (p *commandLine) tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "token USER", Short: "print an access token for a user, for development", Args: cobra.ArbitraryArgs,
		Long: "  It needs the key in the data directory, or key-file, and works while the server runs. The token is\n" +
			"  good for 24 hours. The user exists from the first call with it on.\n",
		RunE: func(_ *cobra.Command, users []string) error {
			cfg, err := p.config()
			if err != nil {
				return err
			}
			if len(users) != 1 {
				return cmdline.Usagef("token needs one user id")
			}
			if err := auth.CheckUserID(users[0]); err != nil {
				return cmdline.Usage(err)
			}
			token, err := cfg.issuer()(users[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(p.stdout, token)
			return err
		},
	}
}

func (p *commandLine) kafkaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kafka", Short: "print how to read the event log with kcat and other clients", Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := p.config()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return cmdline.Usagef("kafka takes no arguments, not %.40q", args[0])
			}
			return printKafka(cmd.Context(), cfg, p.stdout)
		},
	}
}

// printKafka says how to read the embedded log with other programs. It needs the file
// of credentials only, so it works while a server runs. It asks that server for the topic
// that messages are published to since the last migration.
func printKafka(ctx context.Context, cfg Config, stdout io.Writer) error {
	if cfg.distributed() {
		return errors.New("the brokers are not Parley's own: ask their operators")
	}
	path := filepath.Join(cfg.DataDir, port.File)
	c, err := port.Load(cfg.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there yet: the server makes it at its first start", path)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, `With kcat, and all that is built on librdkafka:

  kcat -F %s -C -e -q -t %s -X isolation.level=read_committed -f '%%t/%%p @%%o %%k %%S bytes\n'

With Kafka's own commands and other clients in Java, as a file of properties:

%s
Readers may read all topics and use groups of their own. They change nothing.
`, path, versions.Published(ctx, c.Address, kafka.MessagesPersisted, c.Options()...), c.JavaProperties())
	return err
}
