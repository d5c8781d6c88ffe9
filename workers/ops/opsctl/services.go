package opsctl

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) services() *cobra.Command {
	return cmdline.Group("services", "commands on service accounts",
		p.serviceList(), p.serviceShow(), p.serviceCreate(), p.serviceScopes(), p.serviceDisable(), p.serviceAddKey(),
		p.serviceRevokeKey())
}

func (c *call) accountService() adminv1connect.ServiceAccountAdminServiceClient {
	return adminv1connect.NewServiceAccountAdminServiceClient(c.http, c.url, c.with)
}

func (p *program) serviceList() *cobra.Command {
	var req adminv1.ListServiceAccountsRequest
	return p.command(spec{use: "list", short: "list service accounts",
		flags: func(fs *pflag.FlagSet) { pagingFlags(fs, &req.PageSize, &req.PageToken, "accounts") },
		run: func(c *call) error {
			res, err := c.accountService().ListServiceAccounts(c.ctx, &req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("SERVICE\tSTATE\tMADE\tBY\tSCOPES\tDESCRIPTION", func(w io.Writer) {
				for _, a := range res.GetServiceAccounts() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", safe(a.GetServiceId()), accountState(a), formatTime(a.GetCreatedAt()),
						safe(a.GetCreatedBy()), safe(strings.Join(a.GetScopes(), ",")), safe(a.GetDescription()))
				}
			}, res.GetNextPageToken())
		}})
}

func accountState(a *adminv1.ServiceAccount) string {
	if a.GetDisabled() {
		return "disabled"
	}
	return "active"
}

func (c *call) printAccount(a *adminv1.ServiceAccount) error {
	return c.table(func(w io.Writer) {
		if a.GetServiceId() != "" {
			fmt.Fprintf(w, "service\t%s\n", safe(a.GetServiceId()))
		}
		fmt.Fprintf(w, "description\t%s\n", safe(a.GetDescription()))
		fmt.Fprintf(w, "scopes\t%s\n", safe(strings.Join(a.GetScopes(), ",")))
		fmt.Fprintf(w, "state\t%s\n", accountState(a))
		fmt.Fprintf(w, "made\t%s by %s\n", formatTime(a.GetCreatedAt()), safe(a.GetCreatedBy()))
	})
}

func (p *program) serviceShow() *cobra.Command {
	return p.command(spec{use: "show SERVICE", short: "show a service account and its keys", args: 1,
		run: func(c *call) error {
			res, err := c.accountService().GetServiceAccount(c.ctx, &adminv1.GetServiceAccountRequest{ServiceId: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.printAccount(res.GetServiceAccount()); err != nil {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "\nKEY\tSTATE\tMADE\tENDS")
				for _, k := range res.GetKeys() {
					state := "active"
					if k.GetRevoked() {
						state = "revoked"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", safe(k.GetKeyId()), state, formatTime(k.GetCreatedAt()),
						formatTime(k.GetExpiresAt()))
				}
			})
		}})
}

func (p *program) serviceCreate() *cobra.Command {
	var (
		execute   bool
		id, about string
		scopes    []string
	)
	return p.command(spec{use: "create", short: "make a service account, without a key",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&id, "id", "", "`id` of small letters, digits and dashes; one is made if it is not given")
			fs.StringVar(&about, "description", "", "what it is for: `text` of at least 3 characters")
			fs.StringSliceVar(&scopes, "scopes", nil, "what it may do: `scopes` with commas between them, and users:BEGINNING or users:* for whom")
			executeFlag(fs, &execute)
		},
		run: func(c *call) error {
			res, err := c.accountService().CreateServiceAccount(c.ctx,
				&adminv1.CreateServiceAccountRequest{ServiceId: id, Description: about, Scopes: scopes, Execute: execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.printAccount(res.GetServiceAccount()); err != nil {
				return err
			}
			return c.done(execute, "made: services add-key %s makes its key", safe(res.GetServiceAccount().GetServiceId()))
		}})
}

func (p *program) serviceScopes() *cobra.Command {
	var (
		execute bool
		scopes  []string
	)
	return p.command(spec{use: "set-scopes SERVICE", short: "change what a service account may do", args: 1,
		flags: func(fs *pflag.FlagSet) {
			fs.StringSliceVar(&scopes, "scopes", nil, "all that it may do: `scopes` with commas between them, and users:BEGINNING or users:* for whom")
			executeFlag(fs, &execute)
		},
		run: func(c *call) error {
			res, err := c.accountService().SetServiceScopes(c.ctx,
				&adminv1.SetServiceScopesRequest{ServiceId: c.args[0], Scopes: scopes, Execute: execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.printAccount(res.GetServiceAccount()); err != nil {
				return err
			}
			return c.done(execute, "changed, everywhere within 5s")
		}})
}

func (p *program) serviceDisable() *cobra.Command {
	var f change
	return p.command(spec{use: "disable SERVICE", short: "end a service account for ever", args: 1, flags: f.flags,
		run: func(c *call) error {
			res, err := c.accountService().DisableServiceAccount(c.ctx,
				&adminv1.DisableServiceAccountRequest{ServiceId: c.args[0], Reason: f.reason, Execute: f.execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			if err := c.printAccount(res.GetServiceAccount()); err != nil {
				return err
			}
			return c.done(f.execute, "disabled: its keys are refused everywhere within 5s")
		}})
}

func (p *program) serviceAddKey() *cobra.Command {
	var (
		execute bool
		after   time.Duration
	)
	return p.command(spec{use: "add-key SERVICE", args: 1,
		short: "make a key of a service account, and print it this once",
		long: "  The key is printed alone on a line; nothing can print it again. Earlier keys stay good until they are\n" +
			"  revoked or end.\n",
		flags: func(fs *pflag.FlagSet) {
			fs.DurationVar(&after, "expires-in", 0, "how long the key is good, a `duration` such as 720h; for ever if not given")
			executeFlag(fs, &execute)
		},
		run: func(c *call) error {
			req := &adminv1.CreateServiceKeyRequest{ServiceId: c.args[0], Execute: execute}
			switch {
			case after < 0:
				return cmdline.Usagef("expires-in must not be negative")
			case after > 0:
				req.ExpiresAt = timestamppb.New(time.Now().Add(after))
			}
			res, err := c.accountService().CreateServiceKey(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			if !execute {
				return c.say(dryRun)
			}
			fmt.Fprintf(c.stderr, "key %s, ends %s\n", safe(res.GetKey().GetKeyId()),
				formatTime(res.GetKey().GetExpiresAt()))
			_, err = fmt.Fprintln(c.stdout, res.GetSecret())
			return err
		}})
}

func (p *program) serviceRevokeKey() *cobra.Command {
	var f change
	return p.command(spec{use: "revoke-key SERVICE KEY", short: "end a key of a service account", args: 2, flags: f.flags,
		run: func(c *call) error {
			res, err := c.accountService().RevokeServiceKey(c.ctx, &adminv1.RevokeServiceKeyRequest{ServiceId: c.args[0],
				KeyId: c.args[1], Reason: f.reason, Execute: f.execute})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.done(f.execute, "revoked: it is refused everywhere within 5s")
		}})
}

func (p *program) limits() *cobra.Command {
	return cmdline.Group("limits", "look at limits",
		p.command(spec{use: "list", short: "list the limits of the installation", run: func(c *call) error {
			res, err := c.limitService().ListLimits(c.ctx, &adminv1.ListLimitsRequest{})
			if err != nil || c.printJSON(res) {
				return err
			}
			if res.GetSharedAway() {
				fmt.Fprintln(c.stdout, "what the processes count together cannot be reached")
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "LIMIT\tBY\tALLOWED\tAT ONCE\tIF IT CANNOT BE COUNTED")
				for _, l := range res.GetLimits() {
					closed := "passes"
					if l.GetFailsClosed() {
						closed = "is refused"
					}
					fmt.Fprintf(w, "%s\t%s\t%g in %s\t%d\t%s\n", safe(l.GetName()), safe(l.GetKey()), l.GetRate(),
						formatDuration(l.GetPeriod()), l.GetBurst(), closed)
				}
			})
		}}),
		p.command(spec{use: "show LIMIT KEY", short: "show how much of a limit a user or an address has left", args: 2,
			run: func(c *call) error {
				res, err := c.limitService().GetLimitState(c.ctx,
					&adminv1.GetLimitStateRequest{Limit: c.args[0], Key: c.args[1]})
				if err != nil || c.printJSON(res) {
					return err
				}
				return c.table(func(w io.Writer) {
					fmt.Fprintf(w, "left\t%d\n", res.GetRemaining())
					fmt.Fprintf(w, "more in\t%s\n", formatDuration(res.GetRetryAfter()))
				})
			}}))
}

func (c *call) limitService() adminv1connect.LimitAdminServiceClient {
	return adminv1connect.NewLimitAdminServiceClient(c.http, c.url, c.with)
}
