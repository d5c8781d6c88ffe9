//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/internal/callcount"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/table"
)

// tapped is an installation of which everything that goes to an engine, and from one
// process to another, is counted.
type tapped struct {
	*fleet
	dynamodb, redis, kafka *callcount.Tap
	links                  [2]*callcount.Tap
}

// tablePrefix begins the names of an installation's tables.
var tablePrefix = regexp.MustCompile(`^[a-z0-9]{10}_`)

// redisKeys are an installation's keys and channels in Redis: of the servers' leases, users'
// rows, lists of members, and nudges.
var redisKeys = regexp.MustCompile(`^[a-z0-9]{10}:([sumn]|servers)\b`)

func redisKind(key string) string {
	if m := redisKeys.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return ""
}

func newTapped(t testing.TB) *tapped {
	t.Helper()
	for _, name := range []string{"PARLEY_TEST_KAFKA", "PARLEY_TEST_DYNAMODB", "PARLEY_TEST_REDIS"} {
		if os.Getenv(name) == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	open := func(tap *callcount.Tap, err error) *callcount.Tap {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tap.Close)
		return tap
	}
	where, err := url.Parse(os.Getenv("PARLEY_TEST_REDIS"))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := os.Getenv("PARLEY_TEST_DYNAMODB")
	in := &tapped{
		dynamodb: open(callcount.DynamoDB(endpoint,
			func(name string) string { return tablePrefix.ReplaceAllString(name, "") })),
		redis: open(callcount.Redis(where.Host, redisKind)),
		kafka: open(callcount.Kafka(strings.Split(os.Getenv("PARLEY_TEST_KAFKA"), ",")...)),
	}
	where.Host = in.redis.Addr()
	t.Setenv("PARLEY_TEST_DYNAMODB", "http://"+in.dynamodb.Addr())
	t.Setenv("PARLEY_TEST_REDIS", where.String())
	t.Setenv("PARLEY_TEST_KAFKA", in.kafka.Addr())
	in.fleet = newFleet(t, endpoint)
	// The servers once more, with links that others find at a tap.
	for i, m := range in.servers {
		at := slices.Index(m.args, "--link-address") + 1
		if at == 0 {
			t.Fatal("the servers are started without --link-address")
		}
		in.links[i] = open(callcount.Link(m.args[at]))
		m.args[at] = in.links[i].Addr()
		m.kill()
	}
	in.flush() // nobody looks for those that were
	for _, m := range in.servers {
		in.start(m)
	}
	return in
}

// read reads all taps.
func (in *tapped) read() [4]callcount.Counts {
	links := callcount.Counts{}
	for i, l := range in.links {
		for name, n := range l.Counts() {
			links[fmt.Sprintf("%s to server %d", name, i+1)] = n
		}
	}
	return [4]callcount.Counts{in.dynamodb.Counts(), in.redis.Counts(), in.kafka.Counts(), links}
}

// fleet is an installation with users whose tokens are made here.
type fleet struct {
	*installation
	bench *benchFixture
	key   *auth.Key
	// Theirs, from beside them.
	store   *dynamo.Store
	routing *routing.Redis
}

// fleetTime bounds a test or benchmark of a fleet.
const fleetTime = 8 * time.Minute

// newFleet starts one; endpoint is DynamoDB's own.
func newFleet(t testing.TB, endpoint string) *fleet {
	t.Helper()
	t.Setenv("PARLEY_TOPIC_SLOTS", "2") // they are soon dealt
	// What is counted is sends, without read models.
	in := newInstallationWith(t, "relay", "fanout", "reconcile")
	key, err := auth.ReadKey(filepath.Join(in.dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), fleetTime)
	t.Cleanup(cancel)
	st, err := dynamo.Open(ctx, dynamo.Options{Wire: wire.Config{Endpoint: endpoint},
		Prefix: strings.TrimSuffix(in.keys, ":") + "_"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	table, err := routing.OpenRedis(routing.Options{URL: os.Getenv("PARLEY_TEST_REDIS"), Prefix: in.keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return &fleet{installation: in, bench: &benchFixture{b: t, ctx: ctx, key: key}, key: key, store: st, routing: table}
}

// person is a user at a server, with connections of the user's own.
func (in *fleet) person(name string, server int) *user {
	in.t.Helper()
	token, err := in.key.Issue(name, time.Now(), time.Hour)
	if err != nil {
		in.t.Fatal(err)
	}
	u := newUser(name, token, in.servers[server].addr, newTransport(in.t, true))
	// The first request makes the user known.
	if _, err := call(in.t.Context(), u.chats.ListChats, &chatv1.ListChatsRequest{}); err != nil {
		in.t.Fatal(err)
	}
	return u
}

// people are n users, every other one at the second server.
func (in *fleet) people(prefix string, n int) []*user {
	list := make([]*user, n)
	each(n, 8, func(i int) { list[i] = in.person(fmt.Sprintf("%s%03d", prefix, i), i%2) })
	return list
}

// sum adds up a metric of processes.
func (in *fleet) sum(name string, of ...*member) (total float64) {
	in.t.Helper()
	for _, m := range of {
		values, err := readMetrics(in.bench.ctx, m.metricsAddr())
		if err != nil {
			in.t.Fatal(err)
		}
		total += values[name]
	}
	return total
}

// poll asks until the answer is yes, or the test's time is up.
func (in *fleet) poll(what string, yes func() bool) {
	in.t.Helper()
	for !yes() {
		select {
		case <-in.bench.ctx.Done():
			in.t.Fatalf("%s: %v", what, in.bench.ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// dealt returns once the slots of relays, and of topics, are shared out evenly: as long as they
// move, their new holders ask more than later.
func (in *fleet) dealt() {
	in.t.Helper()
	for _, m := range in.workers {
		in.poll("slots are not dealt evenly", func() bool { return in.sum(telemetry.RelaySlots, m) == 4 })
	}
	for _, m := range in.servers {
		in.poll("slots of topics are not dealt evenly", func() bool {
			log := m.log.String() // a slot that is held may not be open yet
			open := strings.Count(log, "topics: slot taken") - strings.Count(log, "topics: slot given up")
			return 2*open == int(in.sum(telemetry.TopicSlotsAll, m))
		})
	}
}

// handled is how many records fanout has handled.
func (in *fleet) handled() int { return int(in.sum(telemetry.FanoutHandled, in.workers[:]...)) }

// settled returns once fanout has handled n records.
func (in *fleet) settled(n int) {
	in.t.Helper()
	in.poll("not all is through Kafka", func() bool { return in.handled() >= n })
}

// quiet returns once nothing is on its way: the outbox is empty, and what was in it is
// through Kafka.
func (in *fleet) quiet() {
	in.t.Helper()
	for shard := range event.Shards {
		q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Limit: 1, Consistency: store.Strong}
		in.poll("the outbox is not empty", func() bool {
			page, err := in.store.Query(in.bench.ctx, q)
			if err != nil {
				in.t.Fatal(err)
			}
			return len(page.Rows) == 0
		})
	}
	in.settled(int(in.sum(telemetry.RelayPublished, in.workers[:]...)))
}
