package opsctl

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) groups() *cobra.Command {
	return cmdline.Group("groups", "commands on consumer groups", p.describeGroup(), p.hotKeys())
}

func (p *program) describeGroup() *cobra.Command {
	var all bool
	return p.command(spec{
		use: "describe GROUP", short: "members of a consumer group, and how far it is behind", args: 1, needs: "one group",
		flags: func(fs *pflag.FlagSet) { fs.BoolVar(&all, "all", false, "show partitions that are not behind, too") },
		run: func(c *call) error {
			res, err := c.ops().GetConsumerGroup(c.ctx, &opsv1.GetConsumerGroupRequest{Group: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) { printConsumerGroup(w, c.args[0], res, all) })
		},
	})
}

// printConsumerGroup prints a group's members and the partitions in which it is behind, or all.
func printConsumerGroup(w io.Writer, group string, res *opsv1.GetConsumerGroupResponse, all bool) {
	fmt.Fprintf(w, "%s is %s, %d records behind\n\n", safe(group), res.GetState(), res.GetLag())
	fmt.Fprintln(w, "MEMBER\tCLIENT\tHOST\tPARTITIONS")
	for _, m := range res.GetMembers() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", safe(m.GetMemberId()), safe(m.GetClientId()), safe(m.GetHost()),
			m.GetPartitions())
	}
	rows := len(res.GetPartitions())
	shown := slices.DeleteFunc(res.GetPartitions(),
		func(p *opsv1.ConsumerGroupPartition) bool { return p.GetLag() == 0 && !all })
	if len(shown) > 0 {
		fmt.Fprintln(w, "\nTOPIC\tPARTITION\tCOMMITTED\tEND\tLAG\tMEMBER")
	}
	for _, p := range shown {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", safe(p.GetTopic()), p.GetPartition(), p.GetCommitted(), p.GetEnd(),
			p.GetLag(), cmp.Or(p.GetMemberId(), "-"))
	}
	if idle := rows - len(shown); idle > 0 {
		fmt.Fprintf(w, "\n%d partitions are not behind; --all shows them\n", idle)
	}
}

func (p *program) hotKeys() *cobra.Command {
	var limit int
	return p.command(spec{
		use: "hot-keys GROUP TOPIC PARTITION", short: "most frequent keys among a partition's unread records", args: 3,
		needs: "a group, a topic and a partition",
		flags: func(fs *pflag.FlagSet) { fs.IntVar(&limit, "limit", 10, "`keys`, 1 to 100") },
		run: func(c *call) error {
			part, err := strconv.ParseInt(c.args[2], 10, 32)
			if err != nil {
				return cmdline.Usagef("%.40q is no partition", c.args[2])
			}
			res, err := c.ops().ListHotKeys(c.ctx,
				&opsv1.ListHotKeysRequest{Group: c.args[0], Topic: c.args[1], Partition: int32(part), Limit: bounded(limit)})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "RECORDS\tKEY")
				for _, k := range res.GetKeys() {
					fmt.Fprintf(w, "%d\t%s\n", k.GetRecords(), safe(k.GetKey()))
				}
				fmt.Fprintf(w, "%d\tunread records counted\n", res.GetRecords())
			})
		},
	})
}
