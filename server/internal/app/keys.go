package app

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// keysConfig says where the file of keys is, with which access tokens are signed. The commands need the
// file only, so they work while servers run, and where none does.
type keysConfig struct {
	Path   func() (string, error)
	Clock  func() time.Time
	Stdout io.Writer
}

// keysCommand are the commands on the file of keys.
func (p *commandLine) keysCommand() *cobra.Command {
	return keysCommand(keysConfig{Stdout: p.stdout, Clock: time.Now, Path: func() (string, error) {
		cfg, err := p.config()
		return cfg.keyPath(), err
	}})
}

// maxNotice bounds how long a key waits: beyond it the next rotation would wait, too.
const maxNotice = 7 * 24 * time.Hour

// keysCommand is "keys" with its subcommands.
func keysCommand(c keysConfig) *cobra.Command {
	return cmdline.Group("keys", "show and replace the keys that access tokens are signed with", listKeys(c), rotateKeys(c))
}

func listKeys(c keysConfig) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "show the keys, without their secrets", Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cmdline.Usagef("keys list takes no arguments, not %.40q", args[0])
			}
			path, err := c.Path()
			if err != nil {
				return err
			}
			k, err := auth.ReadKey(path)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KEY\tSIGNS FROM\tACCEPTED UNTIL\t")
			for _, i := range k.Keys(c.Clock()) {
				signing := ""
				if i.Signing {
					signing = "signs now"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.ID, at(i.Signs, "the beginning"), at(i.Until, "further notice"), signing)
			}
			return w.Flush()
		},
	}
}

func at(t time.Time, zero string) string {
	if t.IsZero() {
		return zero
	}
	return t.UTC().Format(time.RFC3339)
}

func rotateKeys(c keysConfig) *cobra.Command {
	var notice time.Duration
	var atOnce, root bool
	cmd := &cobra.Command{
		Use: "rotate", Short: "add a key that signs from soon on, in place of the one that does", Args: cobra.ArbitraryArgs,
		Long: "  Every process reads the file again within seconds. Where processes have copies of the file, all must\n" +
			"  have the new one before its key signs. Tokens of the key before are accepted for a day longer, so\n" +
			"  no user is refused. --at-once ends all access tokens instead; devices fetch others.\n" +
			"  Other secrets are derived from the root secret of the file, which is its first key, and no rotation changes\n" +
			"  them: those of the links between servers, of refresh tokens, codes, keys of service accounts and\n" +
			"  synchronisation. So after a theft of the file use --at-once --root: it also puts another root secret into the\n" +
			"  file. Then stop all servers and workers, and start them: until then they use the old secrets, and those\n" +
			"  that were started do not link to those that were not. Afterwards people sign in again, service accounts\n" +
			"  need other keys, and devices resynchronise.\n",
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return cmdline.Usagef("keys rotate takes no arguments, not %.40q", args[0])
			case root && !atOnce:
				return cmdline.Usagef("--root needs --at-once")
			case atOnce:
				notice = 0
			case notice < time.Second || notice > maxNotice:
				return cmdline.Usagef("the notice must be 1s to %v, not %v", maxNotice, notice)
			}
			path, err := c.Path()
			if err != nil {
				return err
			}
			do, more := func() (auth.Info, error) { return auth.Rotate(path, c.Clock(), notice) }, ""
			if root {
				do = func() (auth.Info, error) { return auth.RotateRoot(path, c.Clock()) }
				more = "stop all servers and workers now, and start them: until then they use secrets of the old root\n"
			}
			made, err := do()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "%s signs from %s on\n%s", made.ID, at(made.Signs, ""), more)
			return err
		},
	}
	cmd.Flags().DurationVar(&notice, "notice", auth.DefaultNotice, "how long the key is known before it signs")
	cmd.Flags().BoolVar(&atOnce, "at-once", false, "let it sign now, and end all tokens of other keys")
	cmd.Flags().BoolVar(&root, "root", false,
		"with --at-once: replace the root secret, too, as after a theft; needs a restart of all processes")
	return cmd
}
