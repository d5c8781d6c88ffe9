//go:build !windows

package app_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/callcount"
	"github.com/parley-chat/parley/server/store"
)

// What a send asks of whom, as counts: they do not depend on the machine. The bounds of
// bytes leave a quarter beyond what was measured.

// spent is what n sends cost in an installation.
type spent struct {
	n                              int
	took                           time.Duration
	dynamodb, redis, kafka, linked callcount.Counts
}

// sendPlan is the transaction of sends, by its tables.
const sendPlan = "TransactWriteItems chat_counters+delivery_state+events+idempotency_keys+messages+outbox"

// ofMarks reports whether a request reads or writes the marks by which tables of one moment are known,
// once a minute: no other names all tables, or all but meta.
func ofMarks(name string) bool { return strings.Count(name, "+")+1 >= len(store.Tables())-1 }

// standing are requests that come whether anybody sends or not: leases, signs of life, sweeps of the outbox,
// stamps, the reconciler's look, what was revoked, whose profile changed, which sessions have ended.
var standing = []string{
	"BatchGetItem leases", "Scan leases", "PutItem leases", "UpdateItem leases", "DeleteItem leases",
	"TransactWriteItems leases",
	// A sweep that meets a row before its nudge is there reads the events that it points to.
	"Query outbox", "Query events", "GetItem meta", "BatchGetItem meta", "PutItem meta", "UpdateItem meta",
	"Scan pending_members", "Query pending_members", "Query revocations", "Query people", "Query sessions",
}

// extra is what DynamoDB was asked for beside sends, deletions from the outbox, and what stands.
func (s spent) extra() callcount.Counts {
	out := callcount.Counts{}
	for name, c := range s.dynamodb {
		if name != sendPlan && name != "BatchWriteItem outbox" && !ofMarks(name) && !slices.Contains(standing, name) {
			out[name] = c
		}
	}
	return out
}

// spend measures what a load costs, from its start until all of its n sends are through
// Kafka and gone from the outbox.
func (in *tapped) spend(n int, load func()) spent {
	in.t.Helper()
	before, handled, began := in.read(), in.handled(), time.Now()
	load()
	in.settled(handled + n)
	in.quiet() // rows are deleted a moment later; this asks past the tap
	now := in.read()
	return spent{
		n, time.Since(began),
		now[0].Since(before[0]), now[1].Since(before[1]), now[2].Since(before[2]), now[3].Since(before[3]),
	}
}

func (s spent) String() string {
	var b strings.Builder
	for _, c := range []callcount.Counts{s.dynamodb, s.redis, s.kafka, s.linked} {
		b.WriteByte('\n')
		b.WriteString(c.String())
	}
	return b.String()
}

// TestCallsPerSend counts what one send asks of DynamoDB, Redis and Kafka, and what servers
// and workers ask of each other for it: in a chat of two and in a group of a hundred, with
// everybody's stream open, for sends one by one and for many at once.
func TestCallsPerSend(t *testing.T) {
	in := newTapped(t)
	in.dealt()
	alice := in.person("alice", 1)
	text := strings.Repeat("x", 128)
	for _, tt := range []struct {
		name   string
		others int
		here   int // others with a stream at the sender's server
	}{{"two", 1, 0}, {"hundred", 99, 49}} {
		people := in.people(tt.name, tt.others) // the first at the server that is not alice's
		id := in.bench.group(alice, names(people)...)
		c := in.bench.crowd("", people)
		shown := int64(0)
		one := func() {
			handled := in.handled()
			in.bench.send(alice, id, stamped(text))
			shown++
			c.await(shown * int64(tt.others))
			in.settled(handled + 1) // so that none shares anything with the next
		}
		in.quiet() // the group is made
		one()
		in.quiet() // from here on all is known that is remembered
		t.Run(tt.name+"/single", func(t *testing.T) {
			const n = 10
			holes := in.sum(telemetry.HoleReads, in.servers[:]...)
			s := in.spend(n, func() {
				for range n {
					one()
				}
			})
			t.Log(s)
			members := int64(tt.others + 1)
			plan, gone := s.dynamodb[sendPlan], s.dynamodb["BatchWriteItem outbox"]
			if plan.Calls != n || plan.Units+gone.Units != 13*n {
				t.Errorf("%d plans, %g write units for %d sends", plan.Calls, plan.Units+gone.Units, n)
			}
			if extra := s.extra(); len(extra) > 0 {
				t.Errorf("DynamoDB was asked for more:\n%v", extra)
			}
			if events := s.dynamodb["Query events"].Calls; events > n/2 ||
				in.sum(telemetry.HoleReads, in.servers[:]...) != holes {
				t.Errorf("events were read %d times, some of them by servers", events)
			}
			// Where the members are is asked for with one command for the live path and one for
			// the repair; rows are read again only every few seconds; who they are is remembered.
			if got := s.redis["HMGET"].Calls; got != 2*n {
				t.Errorf("%d look-ups for %d sends, want %d", got, n, 2*n)
			}
			const remembered, readers = 5 * time.Second, 2 // the sender's server, and the worker that repairs
			limit := members * max(n/2, readers*(1+int64(s.took/remembered)))
			if got := s.redis["SMEMBERS u"].Calls; got > limit {
				t.Errorf("%d rows of %d members were read for %d sends, want at most %d", got, members, n, limit)
			}
			if s.redis["PUBLISH n"].Calls != n || s.redis["GET m"].Calls != 0 {
				t.Errorf("%d nudges, %d lists of members", s.redis["PUBLISH n"].Calls, s.redis["GET m"].Calls)
			}
			if s.kafka["Produce"].Calls != n || s.kafka["EndTxn"].Calls != n || s.kafka["OffsetCommit"].Calls > n {
				t.Errorf("Kafka:\n%v", s.kafka)
			}
			// One message for each server, however many members it concerns: the change, and
			// its repair. The sender's own server needs the repair alone.
			there, here := s.linked["Send to server 1"], s.linked["Send to server 2"]
			if there.Calls != 2*n || here.Calls != int64(min(tt.here, 1)*n) {
				t.Errorf("%d and %d messages on links", there.Calls, here.Calls)
			}
			// Leases and rows are renewed by time, not by sends: the slower the machine, the
			// more of that falls to each send.
			s.within(t, map[string]int64{
				"DynamoDB": 4900, "Redis": 2*members*60 + 8000, "Kafka produced": 850, "links": int64(min(tt.here, 1))*500 + 1300,
			})
		})
		t.Run(tt.name+"/many", func(t *testing.T) {
			const n, senders = 256, 64
			s := in.spend(n, func() {
				each(n, senders, func(int) { in.bench.send(alice, id, stamped(text)) })
				shown += n
				c.await(shown * int64(tt.others))
			})
			t.Log(s)
			if rows := s.dynamodb["BatchWriteItem outbox"].Units; rows != float64(s.dynamodb[sendPlan].Calls) {
				t.Errorf("%g rows of the outbox for %d plans", rows, s.dynamodb[sendPlan].Calls)
			}
			// How many share a plan depends on how fast they come; that they do, does not.
			if plans := s.dynamodb[sendPlan].Calls; plans > n/3 {
				t.Errorf("%d plans for %d sends", plans, n)
			}
			if extra := s.extra(); len(extra) > 0 {
				t.Errorf("DynamoDB was asked for more:\n%v", extra)
			}
			if s.kafka["EndTxn"].Calls > n/3 || s.kafka["Produce"].Calls > n/3 {
				t.Errorf("Kafka:\n%v", s.kafka)
			}
			// Neither the live path nor the repair asks or tells anybody once for each send.
			if lookups := s.redis["HMGET"].Calls; lookups > 2*n/3 {
				t.Errorf("%d look-ups for %d sends, want at most %d", lookups, n, 2*n/3)
			}
			for _, name := range []string{"Send to server 1", "Send to server 2"} {
				if calls := s.linked[name].Calls; calls > n/3 {
					t.Errorf("%s: %d times", name, calls)
				}
			}
		})
		c.stop()
		c.wg.Wait()
	}
}

// within checks bytes per send, both ways.
func (s spent) within(t *testing.T, limits map[string]int64) {
	t.Helper()
	bytes := func(c callcount.Count) int64 { return (c.Out + c.In) / int64(s.n) }
	got := map[string]int64{
		"DynamoDB":       bytes(s.dynamodb.Of(sendPlan, "BatchWriteItem outbox")),
		"Redis":          bytes(s.redis.Of()),
		"Kafka produced": bytes(s.kafka.Of("Produce", "EndTxn")),
		"links":          bytes(s.linked.Of("Send")),
	}
	for name, limit := range limits {
		t.Logf("%s: %d bytes per send", name, got[name])
		if got[name] > limit {
			t.Errorf("%s: %d bytes per send, more than %d", name, got[name], limit)
		}
	}
}
