package limit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Name names a rule.
type Name string

// The rules. The packages that charge them document their keys.
const (
	// Requests of a caller, by what procedures cost.
	UserRequests    Name = "user_requests"
	SessionRequests Name = "session_requests"
	AddressRequests Name = "address_requests"
	ServiceRequests Name = "service_requests"

	// Requests without any credential that the installation issued.
	Strangers Name = "strangers"

	// Actions of users on others.
	Send         Name = "send"
	CreateGroup  Name = "create_group"
	CreateDirect Name = "create_direct"
	AddMember    Name = "add_member"
	Subscribe    Name = "subscribe"
	Invite       Name = "invite"
	Lookup       Name = "lookup_identifier" // whose is an e-mail address, or a number

	// Actions of users on their own account that are work for others, or for the store.
	UpdateProfile Name = "update_profile"
	Export        Name = "export"

	// Messages that users and programs publish to durable topics.
	TopicMessages  Name = "topic_messages"
	TopicKilobytes Name = "topic_kilobytes" // of 1,024 bytes, as encoded

	// Actions on others by users of new accounts.
	NewSend         Name = "new_send"
	NewCreateGroup  Name = "new_create_group"
	NewCreateDirect Name = "new_create_direct"
	NewAddMember    Name = "new_add_member"

	// Direct chats to which the other has not written; beyond them, how often the server
	// checks whether the other has.
	Unanswered Name = "unanswered"
	Answered   Name = "answered"

	// Sign-in, before anybody is known. The caps of an identifier lie with its codes.
	OTPAddress Name = "otp_ip"      // codes that an address asks for
	OTPNetwork Name = "otp_network" // codes of all addresses of one holder
	OTPGlobal  Name = "otp_global"  // codes of the installation, with one key
	SignIn     Name = "sign_in"     // attempts of an address, with codes and tokens
)

// By is what a rule has a bucket for each of.
type By string

// The subjects that rules count by. An address is one of IPv4, or a /64 of IPv6; a network
// is what one holder has many of these in: a /24 or a /48.
const (
	User         By = "user"
	Session      By = "session"
	Service      By = "service"
	Address      By = "address"
	Network      By = "network"
	Installation By = "installation"
)

const (
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * time.Hour
)

// costliest is what one request costs at most. Where a bucket held less, such a request would
// never be let through.
const costliest = 10

// mostPublished and mostKilobytes are what one publish costs at most.
const (
	mostPublished = 1000
	mostKilobytes = 4096
)

// defaults is the table of rules. Many people share an address of IPv4 (a company, a campus,
// the customers of a carrier), so that rules by address are for hundreds of them; it is the
// network that keeps one holder of many addresses from a large part of what the installation
// sends.
var defaults = []Rule{
	{Name: UserRequests, By: User, Count: 100, Per: time.Second, Burst: 400, Least: costliest},
	{Name: SessionRequests, By: Session, Count: 60, Per: time.Second, Burst: 300, Least: costliest},
	{Name: AddressRequests, By: Address, Count: 500, Per: time.Second, Burst: 3_000, Least: costliest},
	{Name: ServiceRequests, By: Service, Count: 1_000, Per: time.Second, Burst: 4_000, Least: costliest},
	{Name: Strangers, By: Address, Count: 20, Per: time.Second, Burst: 400},

	{Name: Send, By: User, Count: 1, Per: time.Second, Burst: 60},
	{Name: CreateGroup, By: User, Count: 10, Per: hour, Burst: 10},
	{Name: CreateDirect, By: User, Count: 60, Per: hour, Burst: 60},
	{Name: AddMember, By: User, Count: 100, Per: hour, Burst: 100},
	{Name: Subscribe, By: User, Count: 10, Per: minute, Burst: 10},
	{Name: Invite, By: User, Count: 50, Per: day, Burst: 50, Closed: true},
	{Name: Lookup, By: User, Count: 100, Per: day, Burst: 100, Closed: true},
	{Name: UpdateProfile, By: User, Count: 10, Per: minute, Burst: 5},
	{Name: Export, By: User, Count: 2, Per: day, Burst: 2},

	{Name: TopicMessages, By: User, Count: 50_000, Per: time.Second, Burst: 200_000, Least: mostPublished},
	{Name: TopicKilobytes, By: User, Count: 65_536, Per: time.Second, Burst: 262_144, Least: mostKilobytes},

	{Name: NewSend, By: User, Count: 30, Per: minute, Burst: 60},
	{Name: NewCreateGroup, By: User, Count: 5, Per: day, Burst: 5},
	{Name: NewCreateDirect, By: User, Count: 20, Per: day, Burst: 20},
	{Name: NewAddMember, By: User, Count: 50, Per: day, Burst: 50},
	{Name: Unanswered, By: User, Count: 20, Per: day, Burst: 20},
	{Name: Answered, By: User, Count: 100, Per: day, Burst: 100},

	{Name: OTPAddress, By: Address, Count: 600, Per: hour, Burst: 100, Closed: true},
	{Name: OTPNetwork, By: Network, Count: 3_000, Per: hour, Burst: 200, Closed: true},
	{Name: OTPGlobal, By: Installation, Count: 1_000, Per: minute, Burst: 1_000, Closed: true},
	{Name: SignIn, By: Address, Count: 60, Per: minute, Burst: 120, Closed: true},
}

// Rule is a line of the table: Count per Per for each key, and Burst at once. Off lets
// everything through.
type Rule struct {
	Name  Name
	By    By
	Count int
	Per   time.Duration
	Burst int
	// Least is what Burst must be at least.
	Least int
	// Closed refuses what the processes together cannot count, while Redis is away; other
	// rules are then each process's own.
	Closed bool
	Off    bool
}

// interval is the time in which a unit comes back.
func (r Rule) interval() time.Duration { return r.Per / time.Duration(r.Count) }

// window is the time in which an empty bucket fills.
func (r Rule) window() time.Duration { return time.Duration(r.Burst) * r.interval() }

// slack is the cost that a process lets through before it charges the bucket that all share:
// so much a key may be ahead in each process. Where no key may be ahead there is none.
func (r Rule) slack() int {
	if r.Closed {
		return 0
	}
	return r.Burst / 10
}

// String is the form that [ParseTable] reads.
func (r Rule) String() string {
	if r.Off {
		return string(r.Name) + "=off"
	}
	return fmt.Sprintf("%s=%d/%s:%d", r.Name, r.Count, periodName(r.Per), r.Burst)
}

// Table is the rules of an installation.
type Table struct{ rules []Rule }

// DefaultTable is the table as it is declared.
func DefaultTable() Table { return Table{slices.Clone(defaults)} }

// Rules returns the rules in the order of their declaration.
func (t Table) Rules() []Rule { return slices.Clone(t.rules) }

func (t Table) index(n Name) int {
	return slices.IndexFunc(t.rules, func(r Rule) bool { return r.Name == n })
}

// periods are the names of times in the text of a table.
var periods = []struct {
	name string
	time time.Duration
}{{"s", time.Second}, {"m", minute}, {"h", hour}, {"d", day}}

func periodName(d time.Duration) string {
	for _, p := range periods {
		if p.time == d {
			return p.name
		}
	}
	return d.String()
}

// Bounds of what an installation may set.
const (
	maxPercent = 10_000
	maxCount   = 1_000_000
)

// ParseTable reads what an installation has in place of the declared table: parts with commas
// between them, each NAME=COUNT/PERIOD[:BURST] with the period s, m, h or d and the count as
// the burst where there is none, NAME=off, or PERCENT%, which scales counts and bursts of
// those that have no part of their own, and bursts no lower than what one call costs; off
// alone switches all rules off. Errors fit into one line, which names the setting.
func ParseTable(text string) (Table, error) {
	t, err := parseTable(text)
	if err != nil {
		return t, fmt.Errorf("limits: %w", err)
	}
	return t, nil
}

func parseTable(text string) (Table, error) {
	t := DefaultTable()
	if text == "" {
		return t, nil
	}
	if text == "off" {
		for i := range t.rules {
			t.rules[i].Off = true
		}
		return t, nil
	}
	percent, own := 100, map[int]bool{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if number, ok := strings.CutSuffix(part, "%"); ok {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 || n > maxPercent {
				return t, fmt.Errorf("%q must be 1%% to %d%%", part, maxPercent)
			}
			percent = n
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		i := t.index(Name(name))
		if !ok || i < 0 {
			return t, fmt.Errorf("%.40q is none of the rules: off, PERCENT%%, or NAME=COUNT/PERIOD:BURST with a name of %s",
				part, t.names())
		}
		if err := t.rules[i].parse(value); err != nil {
			return t, fmt.Errorf("%s: %w", name, err)
		}
		own[i] = true
	}
	for i := range t.rules {
		if !own[i] {
			t.rules[i].scale(percent)
		}
	}
	return t, nil
}

func (r *Rule) scale(percent int) {
	r.Count = max(1, r.Count*percent/100)
	r.Burst = max(1, r.Least, r.Burst*percent/100)
}

func (r *Rule) parse(value string) error {
	if value == "off" {
		r.Off = true
		return nil
	}
	wrong := fmt.Errorf("must be COUNT/PERIOD:BURST, such as 60/m:10, or off, not %.40q", value)
	rate, burst, hasBurst := strings.Cut(value, ":")
	count, period, ok := strings.Cut(rate, "/")
	n, err := strconv.Atoi(count)
	i := slices.IndexFunc(periods, func(p struct {
		name string
		time time.Duration
	}) bool {
		return p.name == period
	})
	if !ok || err != nil || i < 0 {
		return wrong
	}
	b := n
	if hasBurst {
		if b, err = strconv.Atoi(burst); err != nil {
			return wrong
		}
	}
	if n < 1 || n > maxCount || b < 1 || b > maxCount {
		return fmt.Errorf("counts must be 1 to %d", maxCount)
	}
	if b < r.Least {
		return fmt.Errorf("the burst must be %d at least, which is what one call may cost", r.Least)
	}
	r.Count, r.Per, r.Burst = n, periods[i].time, b
	return nil
}

func (t Table) names() string {
	var list []string
	for _, r := range t.rules {
		list = append(list, string(r.Name))
	}
	return strings.Join(list, ", ")
}

// ErrNoRule says that a rule is not in the table, which is a mistake of the program.
var ErrNoRule = errors.New("limit: no such rule")
