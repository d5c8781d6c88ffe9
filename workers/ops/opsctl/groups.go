package opsctl

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func describeGroup(fs *flag.FlagSet) func(*call, []string) error {
	all := fs.Bool("all", false, "show partitions that are not behind, too")
	return func(c *call, args []string) error {
		group, err := oneArgument(args, "groups describe needs one group")
		if err != nil {
			return err
		}
		res, err := c.client.GetConsumerGroup(c.ctx, &opsv1.GetConsumerGroupRequest{Group: group})
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintf(w, "%s is %s, %d records behind\n\n", safe(group), res.GetState(), res.GetLag())
		fmt.Fprintln(w, "MEMBER\tCLIENT\tHOST\tPARTITIONS")
		for _, m := range res.GetMembers() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", safe(m.GetMemberId()), safe(m.GetClientId()), safe(m.GetHost()),
				m.GetPartitions())
		}
		rows := len(res.GetPartitions())
		shown := slices.DeleteFunc(res.GetPartitions(),
			func(p *opsv1.ConsumerGroupPartition) bool { return p.GetLag() == 0 && !*all })
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
		return w.Flush()
	}
}

func hotKeys(fs *flag.FlagSet) func(*call, []string) error {
	limit := fs.Int("limit", 10, "keys, 1 to 100")
	return func(c *call, args []string) error {
		if len(args) != 3 {
			return errUsage{errors.New("groups hot-keys needs a group, a topic and a partition")}
		}
		part, err := strconv.ParseInt(args[2], 10, 32)
		if err != nil {
			return errUsage{fmt.Errorf("%.40q is no partition", args[2])}
		}
		res, err := c.client.ListHotKeys(c.ctx,
			&opsv1.ListHotKeysRequest{Group: args[0], Topic: args[1], Partition: int32(part), Limit: int32(min(*limit, 1<<30))})
		if err != nil || c.printJSON(res) {
			return err
		}
		w := c.table()
		fmt.Fprintln(w, "RECORDS\tKEY")
		for _, k := range res.GetKeys() {
			fmt.Fprintf(w, "%d\t%s\n", k.GetRecords(), safe(k.GetKey()))
		}
		fmt.Fprintf(w, "%d\tunread records counted\n", res.GetRecords())
		return w.Flush()
	}
}
