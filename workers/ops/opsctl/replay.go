package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

// several is a flag that may come several times.
func several(fs *flag.FlagSet, p *[]string, name, help string) {
	fs.Func(name, help+"; may come several times", func(s string) error {
		*p = append(*p, s)
		return nil
	})
}

func replayEvents(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.ReplayEventsRequest{}
	several(fs, &req.ChatIds, "chat", "of this chat")
	fs.BoolVar(&req.AllChats, "all-chats", false, "of all chats; reads the whole event store")
	fs.Int64Var(&req.FromVersion, "from-version", 0, "from this version of the chats on")
	fs.Int64Var(&req.ToVersion, "to-version", 0, "up to this version; 0: the last")
	several(fs, &req.EventTypes, "type", "of this type, such as MessagePersisted")
	fs.Var(when{&req.FromTime}, "since", "from this time (RFC 3339) on, or within this duration (such as 90m)")
	fs.Var(when{&req.BeforeTime}, "until", "before this time, or longer ago than this duration")
	fs.BoolVar(&req.Execute, "execute", false, "do it; otherwise tell what would be done")
	fs.StringVar(&req.Resume, "resume", "", "where a replay of all chats with the same flags ended early")
	limit := fs.Int("limit", 0, "events; 0: all")
	rate := fs.Int("rate", 1000, "events a second, 1 to 100000")
	return func(c *call, args []string) error {
		if err := none(args); err != nil {
			return err
		}
		if (len(req.GetChatIds()) == 0) != req.GetAllChats() {
			return errUsage{errors.New("replay needs either --chat or --all-chats")}
		}
		if *rate < 1 {
			return errUsage{errors.New("rate must be 1 to 100000")}
		}
		req.Limit, req.Rate = int32(min(*limit, 1<<30)), int32(min(*rate, 1<<30))
		stream, err := c.client.ReplayEvents(c.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		will := "are published again"
		if !req.GetExecute() {
			will = "would be published again"
		}
		resume := req.GetResume()
		for stream.Receive() {
			m := stream.Msg()
			resume = m.GetResume()
			if c.say(m) {
				continue
			}
			line := fmt.Sprintf("%d chats, %d events %s", m.GetChats(), m.GetEvents(), will)
			if m.GetUnpublished() > 0 {
				line += fmt.Sprintf(", %d still wait for their first time", m.GetUnpublished())
			}
			switch {
			case m.GetMore():
				line += ", and there may be more"
			case !m.GetDone():
				line += " …"
			}
			fmt.Fprintln(c.cfg.Stdout, line)
		}
		if err := stream.Err(); err != nil {
			if req.GetExecute() && resume != "" {
				return fmt.Errorf("%w; go on with the same flags and --resume %q", err, resume)
			}
			return err
		}
		if !req.GetExecute() && !c.json {
			fmt.Fprintln(c.cfg.Stdout, "nothing was done: --execute does it")
		}
		return nil
	}
}

func describe(fs *flag.FlagSet) func(*call, []string) error {
	all := fs.Bool("all", false, "show partitions that are not behind, too")
	return func(c *call, args []string) error {
		if len(args) != 1 {
			return errUsage{errors.New("groups describe needs one group")}
		}
		res, err := c.client.GetConsumerGroup(c.ctx, &opsv1.GetConsumerGroupRequest{Group: args[0]})
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintf(w, "%s is %s, %d records behind\n\n", safe(args[0]), res.GetState(), res.GetLag())
		fmt.Fprintln(w, "MEMBER\tCLIENT\tHOST\tPARTITIONS")
		for _, m := range res.GetMembers() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", safe(m.GetMemberId()), safe(m.GetClientId()), safe(m.GetHost()), m.GetPartitions())
		}
		rows := len(res.GetPartitions())
		shown := slices.DeleteFunc(res.GetPartitions(), func(p *opsv1.ConsumerGroupPartition) bool { return p.GetLag() == 0 && !*all })
		if len(shown) > 0 {
			fmt.Fprintln(w, "\nTOPIC\tPARTITION\tCOMMITTED\tEND\tLAG\tMEMBER")
		}
		for _, p := range shown {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\n", safe(p.GetTopic()), p.GetPartition(), p.GetCommitted(), p.GetEnd(), p.GetLag(), or(p.GetMemberId(), "-"))
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
		res, err := c.client.ListHotKeys(c.ctx, &opsv1.ListHotKeysRequest{Group: args[0], Topic: args[1], Partition: int32(part), Limit: int32(min(*limit, 1<<30))})
		if err != nil || c.say(res) {
			return err
		}
		w := tabwriter.NewWriter(c.cfg.Stdout, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "RECORDS\tKEY")
		for _, k := range res.GetKeys() {
			fmt.Fprintf(w, "%d\t%s\n", k.GetRecords(), safe(k.GetKey()))
		}
		fmt.Fprintf(w, "%d\tunread records looked at\n", res.GetRecords())
		return w.Flush()
	}
}
