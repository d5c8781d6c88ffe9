package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/infra/loopback"
	"github.com/parley-chat/parley/server/load/rpc"
)

// Bounds of what can be asked for, so that a slip does not take a machine down.
const (
	maxRate          = 1_000_000
	maxCallers       = 100_000
	maxClients       = 100_000
	maxChats         = 100_000
	maxMembers       = 1_000
	maxSize          = 16 << 10 // bytes of a message's text, the server's own limit
	minSize          = 40       // room for the stamp
	maxPerConnection = 200      // of 250 streams that a connection may have, so that calls find room
	maxTime          = 24 * time.Hour
	maxMarkEvery     = stallTime / 2 // so that a drain does not take what waits for lost
	maxRounds        = 100
)

// Options are what a user can choose.
type Options struct {
	Scenario      string
	Address       string // host:port, with http:// or https:// before it if wanted
	CA            string // file of the certificates that sign the server's
	Mine          bool   // the server is beyond this machine, and the caller's own
	TokenFile     string
	Metrics       string // URL; "" asks the server's address
	Protocol      string
	HTTP          int // of unary calls
	Rate          float64
	Callers       int
	Clients       int
	Chats         int
	Members       int
	Users         int // 0: as many as a chat has members
	Messages      int // of a chat, while clients are absent
	PerConnection int // clients
	Size          int // bytes of a text
	ClientIDs     bool
	NoStreams     bool
	MarkEvery     time.Duration // of receipts; 0: a call for each message
	Duration      time.Duration
	Warmup        time.Duration
	Rounds        int
	Seed          uint64
	JSON, Compare string
	Quiet         bool

	line []string // the flags that were given
}

// scenario is one kind of load.
type scenario struct {
	about string
	flags string // that mean something to it, beside those of all
	// defaults sets what has another default than 0.
	defaults func(o *Options)
	// begin prepares, and returns what measures a round and what ends it all.
	begin func(ctx context.Context, r *run) (round, func(), error)
}

var scenarios = map[string]scenario{
	"paced": {
		about:    "sends at a steady rate; latency counts from when each was due",
		flags:    "rate chats members users per-connection size client-ids no-streams http warmup",
		defaults: func(o *Options) { o.Rate, o.Chats, o.Members = 200, 1, 10 },
		begin:    beginPaced,
	},
	"closed": {
		about:    "callers that send one message after the other",
		flags:    "callers chats members users per-connection size client-ids no-streams http warmup",
		defaults: func(o *Options) { o.Callers, o.Chats, o.Members = 64, 1, 10 },
		begin:    beginClosed,
	},
	"receipts": {
		about:    "paced, and every member marks every message as read",
		flags:    "rate chats members users per-connection size client-ids http warmup mark-every",
		defaults: func(o *Options) { o.Rate, o.Chats, o.Members = 200, 1, 10 },
		begin:    beginReceipts,
	},
	"reads": {
		about:    "callers that read a chat again and again: what a small call costs",
		flags:    "callers chats members users per-connection http warmup",
		defaults: func(o *Options) { o.Callers, o.Chats, o.Members = 16, 1, 16 },
		begin:    beginReads,
	},
	"storm": {
		about:    "clients that connect all at once, until each has everything",
		flags:    "clients members per-connection",
		defaults: func(o *Options) { o.Clients, o.Members = 1_000, 10 },
		begin:    beginStorm,
	},
	"idle": {
		about:    "streams on which nothing happens",
		flags:    "clients members per-connection warmup",
		defaults: func(o *Options) { o.Clients = 1_000 },
		begin:    beginIdle,
	},
	"sync": {
		about:    "clients that come back and fetch what they missed",
		flags:    "clients chats members messages callers per-connection size http",
		defaults: func(o *Options) { o.Clients, o.Chats, o.Members, o.Messages, o.Callers = 100, 100, 10, 20, 64 },
		begin:    beginSync,
	},
}

const shared = "addr ca yes-this-is-mine token-file metrics protocol duration rounds seed json compare quiet"

// Scenarios are the names of the scenarios, in order.
func Scenarios() []string { return slices.Sorted(maps.Keys(scenarios)) }

// About says what a scenario measures.
func About(name string) string { return scenarios[name].about }

// New declares the flags that mean something to a scenario, and returns its options, which have its defaults until the
// flags are read.
func New(name string, fs *pflag.FlagSet) *Options {
	s, o := scenarios[name], &Options{Scenario: name}
	s.defaults(o)
	all := pflag.NewFlagSet(name, pflag.ContinueOnError)
	o.declare(all)
	for _, flag := range strings.Fields(s.flags + " " + shared) {
		fs.AddFlag(all.Lookup(flag))
	}
	return o
}

func (o *Options) declare(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "addr", "", "HOST:PORT of the server, or http:// or https:// and these; by default the setting listen")
	fs.StringVar(&o.CA, "ca", "", "file of the certificates that sign the server's; the system's without it")
	fs.BoolVar(&o.Mine, "yes-this-is-mine", false, "needed for a server beyond this machine")
	fs.StringVar(&o.TokenFile, "token-file", "", "file with a token in each line, for servers whose key is not here")
	fs.StringVar(&o.Metrics, "metrics", "", "URL of the server's metrics; by default /metrics of its address")
	fs.StringVar(&o.Protocol, "protocol", string(rpc.Connect), "connect or grpc")
	fs.IntVar(&o.HTTP, "http", 2, "version of HTTP of calls that are no streams, 1 or 2")
	fs.Float64Var(&o.Rate, "rate", o.Rate, "sends per second")
	fs.IntVar(&o.Callers, "callers", o.Callers, "calls under way at once")
	fs.IntVar(&o.Clients, "clients", o.Clients, "clients of storm, idle and sync")
	fs.IntVar(&o.Chats, "chats", o.Chats, "chats")
	fs.IntVar(&o.Members, "members", o.Members, "members of each chat")
	fs.IntVar(&o.Users, "users", 0, "users whom the chats share; by default as many as a chat has members")
	fs.IntVar(&o.Messages, "messages", o.Messages, "messages of each chat that clients of sync missed")
	fs.IntVar(&o.PerConnection, "per-connection", 1, "clients that share a connection")
	fs.IntVar(&o.Size, "size", 128, "bytes of a message's text")
	fs.BoolVar(&o.ClientIDs, "client-ids", false, "send with a client_message_id, as clients do that repeat sends")
	fs.BoolVar(&o.NoStreams, "no-streams", false, "sends alone, without streams")
	fs.DurationVar(&o.MarkEvery, "mark-every", 100*time.Millisecond,
		"how often a client of receipts says what it has read; 0: a call for each message")
	fs.DurationVar(&o.Duration, "duration", 10*time.Second, "of a round")
	fs.DurationVar(&o.Warmup, "warmup", 2*time.Second, "before each round, not measured")
	fs.IntVar(&o.Rounds, "rounds", 1, "rounds; of several the medians count")
	fs.Uint64Var(&o.Seed, "seed", 1, "of who sends where")
	fs.StringVar(&o.JSON, "json", "", "file to write the report to")
	fs.StringVar(&o.Compare, "compare", "", "earlier report to compare with")
	fs.BoolVar(&o.Quiet, "quiet", false, "no line each second, for which the server's metrics are read")
}

// Parsed completes options whose flags were read, and says what is wrong with them, in one line.
func (o *Options) Parsed(fs *pflag.FlagSet) error {
	o.line = []string{} // in a report it is a list, also without any
	fs.Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"addr", "json", "compare", "quiet", "yes-this-is-mine", "token-file", "ca"}, f.Name) {
			o.line = append(o.line, given(f))
		}
	})
	slices.Sort(o.line)
	return o.check()
}

// given is a flag as it stands in a line.
func given(f *pflag.Flag) string {
	if f.Value.Type() == "bool" && f.Value.String() == "true" {
		return "--" + f.Name
	}
	return "--" + f.Name + "=" + f.Value.String()
}

func (o *Options) check() error {
	uses := strings.Fields(scenarios[o.Scenario].flags + " " + shared)
	for _, n := range []struct {
		flag       string
		value      int
		low, above int
	}{
		{"callers", o.Callers, 1, maxCallers}, {"clients", o.Clients, 1, maxClients}, {"chats", o.Chats, 1, maxChats},
		{"messages", o.Messages, 1, maxChats}, {"per-connection", o.PerConnection, 1, maxPerConnection},
		{"size", o.Size, minSize, maxSize}, {"rounds", o.Rounds, 1, maxRounds}, {"http", o.HTTP, 1, 2},
		{"members", o.Members, o.leastMembers(), maxMembers},
	} {
		if slices.Contains(uses, n.flag) && (n.value < n.low || n.value > n.above) {
			return fmt.Errorf("--%s must be %d to %d, not %d", n.flag, n.low, n.above, n.value)
		}
	}
	switch {
	case o.Scenario == "idle" && o.Rounds > 1:
		return errors.New("--rounds must be 1: a server gives the memory of closed streams back late, so start it again for each")
	case !o.hasAddress():
		return fmt.Errorf("--addr must be HOST:PORT, http://HOST:PORT or https://HOST:PORT, not %.80q", o.Address)
	case slices.Contains(uses, "rate") && !(o.Rate > 0 && o.Rate <= maxRate):
		return fmt.Errorf("--rate must be above 0 and at most %d, not %v", maxRate, o.Rate)
	case o.Protocol != string(rpc.Connect) && o.Protocol != string(rpc.GRPC):
		return fmt.Errorf("--protocol must be connect or grpc, not %.40q", o.Protocol)
	case o.Protocol == string(rpc.GRPC) && o.HTTP == 1:
		return errors.New("--protocol grpc needs --http 2")
	case o.Duration <= 0 || o.Duration > maxTime:
		return fmt.Errorf("--duration must be above 0 and at most %v, not %v", maxTime, o.Duration)
	case o.Warmup < 0 || o.Warmup > maxTime:
		return fmt.Errorf("--warmup must be 0 to %v, not %v", maxTime, o.Warmup)
	case slices.Contains(uses, "mark-every") && (o.MarkEvery < 0 || o.MarkEvery > maxMarkEvery):
		return fmt.Errorf("--mark-every must be 0 to %v, not %v", maxMarkEvery, o.MarkEvery)
	case slices.Contains(uses, "users") && o.Users != 0 && (o.Users < o.Members || o.Users > maxClients):
		return fmt.Errorf("--users must be %d, the members of a chat, to %d, not %d", o.Members, maxClients, o.Users)
	case slices.Contains(uses, "clients") && o.Members > o.Clients:
		return fmt.Errorf("chats of %d members need as many clients, not %d", o.Members, o.Clients)
	case !o.Mine && !o.isHere():
		return fmt.Errorf("%s is not this machine: --yes-this-is-mine says that you may load it", o.Address)
	}
	return nil
}

// leastMembers is 0 where clients need no chats.
func (o *Options) leastMembers() int {
	if o.Scenario == "idle" || o.Scenario == "storm" {
		return 0
	}
	return 2
}

// hostPort is the address without its scheme, and whether that is the one with TLS.
func (o *Options) hostPort() (address string, secure bool) {
	address, secure = strings.CutPrefix(o.Address, "https://")
	return strings.TrimPrefix(address, "http://"), secure
}

func (o *Options) hasAddress() bool {
	address, _ := o.hostPort()
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}

// isHere reports whether the server is on this machine.
func (o *Options) isHere() bool {
	address, _ := o.hostPort()
	return loopback.Is(address)
}
