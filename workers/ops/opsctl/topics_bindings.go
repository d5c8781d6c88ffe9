package opsctl

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p topics) bindings() *cobra.Command {
	return p.command(spec{
		use:   "bindings TOPIC [PRINCIPAL ROLE [GROUP...]]",
		short: "list who may do what with a topic, or set a role", args: 1, more: unbounded,
		long: `  A principal is the subject of an access token; a role is publisher, subscriber, admin or none. A subscriber
  may use the groups that are named, or all groups. billing-* stands for all groups whose names begin with billing-.

  server topics bindings orders
  server topics bindings orders audit@example.com subscriber
  server topics bindings orders billing@example.com subscriber billing 'billing-*'
`,
		run: func(c *call) error {
			switch {
			case len(c.args) == 1:
				return c.listBindings()
			case len(c.args) > 2:
				return c.bind(c.args[1], c.args[2], c.args[3:])
			}
			return c.misuse
		},
	})
}

func (c *call) listBindings() error {
	res, err := c.topics().ListBindings(c.ctx, &topicv1.ListBindingsRequest{Topic: c.args[0]})
	if err != nil || c.printJSON(res) {
		return err
	}
	return c.table(func(w io.Writer) {
		fmt.Fprintln(w, "PRINCIPAL\tROLE\tGROUPS")
		for _, b := range res.GetBindings() {
			groups := "-"
			if b.GetRole() != topicv1.Role_ROLE_PUBLISHER {
				groups = groupsOf(b.GetGroups())
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", safe(b.GetPrincipal()), flagWord(b.GetRole(), "ROLE_"), groups)
		}
	})
}

// groupsOf are the groups that patterns name, as people read them.
func groupsOf(patterns []string) string {
	if len(patterns) == 0 {
		return "all"
	}
	return names(patterns)
}

func (c *call) bind(principal, role string, groups []string) error {
	if role == "none" {
		if len(groups) > 0 {
			return cmdline.Usagef("topics bindings: the role none takes no groups")
		}
		res, err := c.topics().RemoveBinding(c.ctx, &topicv1.RemoveBindingRequest{Topic: c.args[0], Principal: principal})
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.say("%s has no role in %s", safe(principal), safe(c.args[0]))
	}
	v := topicv1.Role_value["ROLE_"+strings.ToUpper(role)]
	if v == 0 {
		return cmdline.Usagef("a role is publisher, subscriber, admin or none, not %.40q", role)
	}
	res, err := c.topics().SetBinding(c.ctx, &topicv1.SetBindingRequest{
		Topic: c.args[0], Principal: principal, Role: topicv1.Role(v), Groups: groups,
	})
	if err != nil || c.printJSON(res) {
		return err
	}
	if len(groups) > 0 {
		return c.say("%s is %s of %s, for the groups %s", safe(principal), role, safe(c.args[0]), groupsOf(groups))
	}
	return c.say("%s is %s of %s", safe(principal), role, safe(c.args[0]))
}
