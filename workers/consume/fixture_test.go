package consume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

const topic = kafka.ChatsCreated

// fixture is a broker with records and a consumer whose handler follows the kinds in their
// values.
type fixture struct {
	t      testing.TB
	broker *kafkatest.Broker // nil on the log in the store
	log    *storeLog         // nil on Kafka
	addr   string
	kafka  []kafka.Option // access to the broker
	group  string
	store  store.Store // of attempts and effects
	batch  bool        // the handler gets the records of a key together
	// All engines of a fixture run in one process, so they share its isolation.
	isolation Isolation

	administrator *kadm.Client // of the test's goroutine

	mu    sync.Mutex
	calls map[string]int // by value
	order map[string][]string
	dead  map[string]DeadLetter // by value
}

// newFixture makes a fixture whose group starts at the current end of the topics.
func newFixture(t testing.TB, b *kafkatest.Broker) *fixture {
	t.Helper()
	r := &fixture{
		t: t, broker: b, addr: b.Addr, group: b.Name("test"), store: dynamotest.Store(t, time.Now),
		calls: map[string]int{}, order: map[string][]string{}, dead: map[string]DeadLetter{},
	}
	r.begin(r.group)
	return r
}

// newStoreFixture makes a fixture on the log in a store.
func newStoreFixture(t testing.TB) *fixture {
	t.Helper()
	return &fixture{t: t, log: newStoreLog(t), group: "test", store: dynamotest.Store(t, time.Now),
		calls: map[string]int{}, order: map[string][]string{}, dead: map[string]DeadLetter{}}
}

// begin makes a group start at the current end of the topics, or at their beginning if the
// broker is the test's own.
func (r *fixture) begin(group string) {
	r.t.Helper()
	r.commit(group, r.ends())
}

func (r *fixture) ends() kadm.Offsets {
	if r.broker.Cluster != nil {
		return nil
	}
	offsets := kadm.Offsets{}
	for name, parts := range r.broker.Mark(r.t, kafka.MessagesPersisted, kafka.ChatsCreated) {
		for id, o := range parts {
			offsets.AddOffset(name, id, o.EpochOffset().Offset, -1)
		}
	}
	return offsets
}

func (r *fixture) commit(group string, offsets kadm.Offsets) {
	r.t.Helper()
	if len(offsets) == 0 {
		return
	}
	testkit.Must(r.t, r.admin().CommitAllOffsets(r.t.Context(), group, offsets))
}

// admin returns one client for all questions of a test, which has many.
func (r *fixture) admin() *kadm.Client {
	if r.administrator == nil {
		r.administrator = kadm.NewClient(r.broker.Client(r.t))
	}
	return r.administrator
}

// committed returns the group's committed offset of a partition of the topic, or -1.
func (r *fixture) committed(part int32) int64 {
	r.t.Helper()
	if r.log != nil {
		all := testkit.Value(r.log.Committed(r.t.Context(), r.group))(r.t)
		if at, ok := all[kafka.Partition{Topic: topic, ID: part}]; ok {
			return at
		}
		return -1
	}
	all, err := r.admin().FetchOffsets(r.t.Context(), r.group)
	testkit.Must(r.t, err)
	if o, ok := all.Lookup(topic, part); ok {
		return o.At
	}
	return -1
}

// members returns the ids of a group's members.
func (r *fixture) members(group string) (ids []string) {
	r.t.Helper()
	groups, err := r.admin().DescribeGroups(r.t.Context(), group)
	if err == nil && !errors.Is(groups[group].Err, kerr.GroupIDNotFound) { // nobody has joined yet
		err = groups[group].Err
	}
	testkit.Must(r.t, err)
	for _, m := range groups[group].Members {
		ids = append(ids, m.MemberID)
	}
	return ids
}

// expel removes all members from a group, as the expiry of their sessions would.
func (r *fixture) expel(group string) {
	r.t.Helper()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, id := range r.members(group) {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = id
		req.Members = append(req.Members, member)
	}
	if len(req.Members) == 0 {
		return
	}
	res, err := req.RequestWith(r.t.Context(), r.broker.Client(r.t))
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	testkit.Must(r.t, err)
	for _, m := range res.Members {
		if err := kerr.ErrorForCode(m.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownMemberID) { // it has left already
			r.t.Fatal(err)
		}
	}
}

func partitionOf(key string) int32 {
	return int32(event.Partition(key, int(kafka.Partitions(topic))))
}

// publish writes records; a value is "key kind number".
func (r *fixture) publish(values ...string) {
	r.t.Helper()
	r.publishRecords(recordsFor(values...))
}

// recordsFor makes records, whose keys are the first words of their values.
func recordsFor(values ...string) (records []*kafka.Record) {
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		records = append(records, &kafka.Record{
			Topic: topic, Partition: partitionOf(key), Key: []byte(key), Value: []byte(v),
			Headers: []kafka.Header{{Key: "h", Value: []byte{0, 255}}},
		})
	}
	return records
}

// publishRecords publishes records and sets their offsets.
func (r *fixture) publishRecords(records []*kafka.Record) {
	r.t.Helper()
	if r.log != nil {
		for chunk := range slices.Chunk(records, 1000) {
			testkit.Must(r.t, r.log.publish(r.t.Context(), chunk...))
		}
		return
	}
	publishRecords(r.t, r.addr, r.broker.Name("publisher"), records, r.kafka...)
}

func publishRecords(t testing.TB, addr, id string, records []*kafka.Record, options ...kafka.Option) {
	t.Helper()
	for chunk := range slices.Chunk(records, 1000) {
		var err error
		for range 5 { // on a busy machine a transaction may be aborted, which readers do not see
			var c *kafka.Client
			if c, err = kafka.NewTransactional(addr, id, options...); err != nil {
				t.Fatal(err)
			}
			err = kafka.Transact(t.Context(), c, chunk)
			c.Close()
			if err == nil {
				break
			}
		}
		testkit.Must(t, err)
	}
}

func (r *fixture) handle(_ context.Context, rec *kafka.Record) error {
	v := string(rec.Value)
	r.mu.Lock()
	r.calls[v]++
	n := r.calls[v]
	r.order[string(rec.Key)] = append(r.order[string(rec.Key)], v)
	r.mu.Unlock()
	switch strings.Fields(v)[1] {
	case "permanent":
		return Fail(Permanent, "bad schema", errors.New("secret content"))
	case "unknown":
		return errors.New("secret content")
	case "panic":
		panic("secret content")
	case "twice":
		if n < 3 {
			return errors.New("not yet")
		}
	case "downstream":
		return Fail(Downstream, "unavailable", nil)
	case "store":
		if n < 4 {
			return Fail(Authoritative, "the store is unavailable", nil)
		}
	case "fatal":
		if n < 2 {
			return Fail(Fatal, "start again", nil)
		}
	}
	return nil
}

// together makes a handler of batches that handles them record by record.
func together(h Handler) BatchHandler {
	return func(ctx context.Context, records []*kafka.Record) (int, error) {
		for i, r := range records {
			if err := h(ctx, r); err != nil {
				return i, err
			}
		}
		return len(records), nil
	}
}

func (r *fixture) engine(change func(*Config)) *Engine {
	r.t.Helper()
	cfg := Config{
		Addr: r.addr, Group: r.group, Consumer: "me", Topics: []string{topic}, Handle: r.handle, Store: r.store,
		Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Parallel: 4, Isolation: &r.isolation,
		WriteDeadLetter: func(_ context.Context, d DeadLetter) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if _, twice := r.dead[string(d.Record.Value)]; twice {
				r.t.Errorf("%s has two dead letters, expected at most one", d.Record.Value)
			}
			r.dead[string(d.Record.Value)] = d
			return nil
		},
	}
	if r.log != nil {
		cfg.Join = r.log.join
	}
	if change != nil {
		change(&cfg)
	}
	if r.batch && cfg.Batch == nil {
		cfg.Handle, cfg.Batch = nil, together(cfg.Handle)
	}
	e, err := New(cfg)
	testkit.Must(r.t, err)
	return e
}

// run runs an engine until the returned function is called.
func (r *fixture) run(e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, func() {}) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("the engine ended with %v, expected nil", err)
		}
	})
}

// await waits for a condition, which is evaluated under the fixture's lock.
func (r *fixture) await(what string, ok func() bool) {
	r.t.Helper()
	testkit.Eventually(r.t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return ok()
	})
}

// until runs an engine until a condition holds.
func (r *fixture) until(e *Engine, what string, ok func() bool) {
	r.t.Helper()
	stop := r.run(e)
	defer stop()
	r.await(what, ok)
}

// alongside lets a test run in parallel with others, because it mostly waits. Tests that share
// Apache Kafka's topics run alone, and so do reruns of a test, within another, on DynamoDB.
func alongside(t *testing.T) {
	t.Helper()
	if os.Getenv(kafkatest.Variable) == "" && !strings.Contains(t.Name(), "/") {
		t.Parallel()
	}
}

// each runs a test on each kind of broker and on the log in the store: it is about the engine, and
// not about members of its group.
func each(t *testing.T, test func(t *testing.T, r *fixture)) {
	t.Helper()
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) { test(t, newFixture(t, b)) })
	t.Run("store", func(t *testing.T) { test(t, newStoreFixture(t)) })
}

// ofMembers runs a test that needs several members or their expulsion, on each kind of broker.
func ofMembers(t *testing.T, test func(t *testing.T, r *fixture)) {
	t.Helper()
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) { test(t, newFixture(t, b)) })
}

// both runs a test with a handler of records and one of batches, on what each or ofMembers have.
func both(
	t *testing.T, on func(*testing.T, func(*testing.T, *fixture)), test func(t *testing.T, r *fixture),
) {
	t.Helper()
	alongside(t)
	for _, batch := range []bool{false, true} {
		t.Run(map[bool]string{false: "records", true: "batches"}[batch], func(t *testing.T) {
			on(t, func(t *testing.T, r *fixture) {
				r.batch = batch
				test(t, r)
			})
		})
	}
}
