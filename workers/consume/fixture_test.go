package consume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// scale is how much of something a test does: few by default, and what CI says.
func scale(t testing.TB, variable string, few int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q", variable, s)
	}
	return n
}

const topic = kafka.ChatsCreated

// fixture is a broker with records and a consumer whose handler does as their values
// say.
type fixture struct {
	t      testing.TB
	broker *kafkatest.Broker
	addr   string
	kafka  []kafka.Option // to be let in
	group  string
	store  store.Store
	batch  bool // the handler gets the records of a key together
	// isolation is that of one process: all engines of a fixture run in one.
	isolation Isolation

	mu    sync.Mutex
	calls map[string]int // by value
	order map[string][]string
	dead  map[string]DeadLetter // by value
}

// newFixture makes a fixture whose group begins where the topics end now.
func newFixture(t testing.TB, b *kafkatest.Broker) *fixture {
	t.Helper()
	r := &fixture{
		t: t, broker: b, addr: b.Addr, group: b.Name("test"), store: dynamotest.Store(t, time.Now),
		calls: map[string]int{}, order: map[string][]string{}, dead: map[string]DeadLetter{},
	}
	r.begin(r.group)
	return r
}

// begin makes a group begin where the topics end now; of a broker of the test's own it
// is at their beginning.
func (r *fixture) begin(group string) {
	r.t.Helper()
	r.commit(group, r.ends())
}

func (r *fixture) ends() kadm.Offsets {
	if r.broker.Embedded != nil {
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
	if err := r.admin().CommitAllOffsets(r.t.Context(), group, offsets); err != nil {
		r.t.Fatal(err)
	}
}

func (r *fixture) admin() *kadm.Client { return kadm.NewClient(r.broker.Client(r.t)) }

// committed returns what the group has committed of a partition of the topic, -1 for
// nothing.
func (r *fixture) committed(part int32) int64 {
	r.t.Helper()
	all, err := r.admin().FetchOffsets(r.t.Context(), r.group)
	if err != nil {
		r.t.Fatal(err)
	}
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
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range groups[group].Members {
		ids = append(ids, m.MemberID)
	}
	return ids
}

// expel removes all members from a group, as their silence would in the end.
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
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range res.Members {
		if err := kerr.ErrorForCode(m.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownMemberID) { // it had left by then
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
	var records []*kafka.Record
	for _, v := range values {
		key, _, _ := strings.Cut(v, " ")
		records = append(records, &kafka.Record{
			Topic: topic, Partition: partitionOf(key), Key: []byte(key), Value: []byte(v), Headers: []kafka.Header{{Key: "h", Value: []byte{0, 255}}},
		})
	}
	r.publishRecords(records)
}

// publishRecords publishes records as they are and notes where they are.
func (r *fixture) publishRecords(records []*kafka.Record) {
	r.t.Helper()
	publishRecords(r.t, r.addr, r.broker.Name("publisher"), records, r.kafka...)
}

func publishRecords(t testing.TB, addr, id string, records []*kafka.Record, options ...kafka.Option) {
	t.Helper()
	for chunk := range slices.Chunk(records, 1000) {
		var err error
		for range 5 { // a busy machine's brokers lose each other at times; what was aborted is not seen
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
		if err != nil {
			t.Fatal(err)
		}
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
		return Fail(Downstream, "away", nil)
	case "store":
		if n < 4 {
			return Fail(Authoritative, "store is away", nil)
		}
	case "fatal":
		if n < 2 {
			return Fail(Fatal, "start again", nil)
		}
	}
	return nil
}

// together is a handler of batches that goes through them record by record.
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
				r.t.Errorf("%s has two dead letters", d.Record.Value)
			}
			r.dead[string(d.Record.Value)] = d
			return nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	if r.batch && cfg.Batch == nil {
		cfg.Handle, cfg.Batch = nil, together(cfg.Handle)
	}
	e, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// run runs an engine until the returned function is called.
func (r *fixture) run(e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			r.t.Errorf("the engine ended: %v", err)
		}
	})
}

// await waits for a condition.
func (r *fixture) await(what string, ok func() bool) {
	r.t.Helper()
	for limit := time.Now().Add(90 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		yes := ok()
		r.mu.Unlock()
		if yes {
			return
		}
		if time.Now().After(limit) {
			r.t.Fatalf("%s: it does not come", what)
		}
	}
}

// until runs an engine until a condition holds.
func (r *fixture) until(e *Engine, what string, ok func() bool) {
	r.t.Helper()
	stop := r.run(e)
	defer stop()
	r.await(what, ok)
}

// both runs a test on each kind of broker, with a handler of records and one of
// batches.
func both(t *testing.T, test func(t *testing.T, r *fixture)) {
	t.Helper()
	for _, batch := range []bool{false, true} {
		t.Run(map[bool]string{false: "records", true: "batches"}[batch], func(t *testing.T) {
			kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
				r := newFixture(t, b)
				r.batch = batch
				test(t, r)
			})
		})
	}
}
