package opsctl

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// issueTime is how long a token is valid that an operator asks for.
const issueTime = 12 * time.Hour

// tokens makes the commands on operators' tokens, which need only the key's file.
func (p *program) tokens() *cobra.Command {
	var role string
	return cmdline.Group("operators", "commands on operators", p.command(spec{
		use: "token NAME", short: "print a token for an operator, good for 12 hours", args: 1, local: true,
		needs: "a name of letters, digits, dots, dashes, underscores and at signs",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&role, "role", string(auth.Admin), "what the token is good for: viewer, moderator or admin")
		},
		run: func(c *call) error {
			if !auth.OperatorName.MatchString(c.args[0]) {
				return c.misuse
			}
			if !auth.Role(role).Valid() {
				return cmdline.Usagef("role must be viewer, moderator or admin, not %.40q", role)
			}
			key, err := c.cfg.Key()
			if err != nil {
				return err
			}
			token, err := key.IssueRole(c.args[0], auth.Role(role), time.Now(), issueTime)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.stdout, token)
			return err
		},
	}))
}
