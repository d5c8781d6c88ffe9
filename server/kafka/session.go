package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Settings of consumers. Offsets are committed by the application only, after a record is
// handled; members keep their partitions across a rebalance.
const (
	MaxPoll = 500 // records that are handled before the next commit
	// sessionTimeout outlasts brokers that stand still or elect a coordinator. A member that
	// died is removed sooner by others, see RemoveMember.
	sessionTimeout = 30 * time.Second
	heartbeatEvery = 10 * time.Second
	// Members learn of a rebalance by a heartbeat. Static members wait for those that died.
	staticHeartbeat  = 300 * time.Millisecond
	rebalanceTimeout = 300 * time.Second
	commitTimeout    = 10 * time.Second
	// FetchBytes bounds what a fetch brings.
	FetchBytes = 4 << 20
	// FetchPartitionBytes bounds what it brings of a partition. Small, so that one answer has
	// records of all partitions when there is much to read, and little is discarded of a paused one.
	FetchPartitionBytes = 64 << 10
	// FetchMaxWait is how long a fetch waits for MinFetch bytes, by default. Short, because a
	// resumed partition waits for the fetch that is in progress.
	FetchMaxWait = 200 * time.Millisecond
)

// Partition names a partition of a topic.
type Partition struct {
	Topic string
	ID    int32
}

// String is the partition as operators know it.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.ID) }

// Compare orders partitions by topic, and then by number.
func (p Partition) Compare(q Partition) int {
	return cmp.Or(cmp.Compare(p.Topic, q.Topic), cmp.Compare(p.ID, q.ID))
}

// Position is the position before a record of a partition.
type Position struct {
	Partition
	Offset int64
}

// SessionConfig configures a Session. The callbacks run in a goroutine of the client, never
// while a batch is being handled.
type SessionConfig struct {
	Addr    string // of brokers, with commas between them
	Options []Option
	Group   string
	// Instance is the name of a static member, with which others can remove it from the group
	// once its process has died, and with which a new process takes its place. Empty: the
	// member has a name of its own.
	Instance string
	Topics   []string
	Expiry   time.Duration // without a heartbeat, after which a member is removed; 0: 30 s
	MinFetch int32         // bytes for which a fetch waits; 0: for anything
	MaxWait  time.Duration // for them; 0: 200 ms
	Assigned func([]Partition)
	// Gone is called when this member no longer owns partitions: they were revoked, after
	// the last batch was committed or given up, or lost, and others may have them.
	Gone func(parts []Partition, lost bool)
}

// Batch is the records of a partition that a poll returned.
type Batch struct {
	Records []*Record // in order of offsets, at least one
	End     int64     // offset at which the partition ended when they were fetched
}

// Session is one member of a consumer group, polled batch by batch. Rebalances wait while
// a batch is being handled. Its methods belong to one goroutine.
type Session struct {
	c               *kgo.Client
	group, instance string
}

// NewSession joins a group.
func NewSession(cfg SessionConfig) (*Session, error) {
	expiry, heartbeat, maxWait := sessionTimeout, heartbeatEvery, cmp.Or(cfg.MaxWait, FetchMaxWait)
	if cfg.Expiry > 0 {
		expiry, heartbeat = cfg.Expiry, cfg.Expiry/3
	}
	list := func(m map[string][]int32) (out []Partition) {
		for topic, ids := range m {
			for _, id := range ids {
				out = append(out, Partition{Topic: topic, ID: id})
			}
		}
		return out
	}
	gone := func(lost bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, m map[string][]int32) { cfg.Gone(list(m), lost) }
	}
	options := slices.Clone(cfg.Options)
	if cfg.Instance != "" {
		heartbeat = min(heartbeat, staticHeartbeat)
		options = append(options, kgo.InstanceID(cfg.Instance))
	}
	c, err := kgo.NewClient(append(options,
		seeds(cfg.Addr), kgo.ClientID("parley-"+cfg.Group), kgo.DisableClientMetrics(), kgo.ConsumerGroup(cfg.Group),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(expiry), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.FetchMinBytes(max(1, cfg.MinFetch)), kgo.FetchMaxBytes(FetchBytes),
		kgo.FetchMaxPartitionBytes(FetchPartitionBytes), kgo.FetchMaxWait(maxWait), kgo.MaxConcurrentFetches(2),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { cfg.Assigned(list(m)) }),
		kgo.OnPartitionsRevoked(gone(false)), kgo.OnPartitionsLost(gone(true)),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return &Session{c, cfg.Group, cfg.Instance}, nil
}

// Poll returns all that has been fetched, by partition; if that is nothing, it waits
// until something is, or ctx ends. Done must follow.
func (s *Session) Poll(ctx context.Context) (map[Partition]Batch, error) {
	return batches(ctx, s.c.PollFetches(ctx))
}

// Fetched returns what Poll does, and does not wait. Done must follow.
func (s *Session) Fetched() (map[Partition]Batch, error) {
	s.Block()
	//nolint:staticcheck // without a context the client does not wait, as it documents
	return batches(context.Background(), s.c.PollFetches(nil))
}

// Block blocks rebalances like Poll, and fetches nothing. Done must follow.
func (s *Session) Block() { s.c.PollFetches(ended) }

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func batches(ctx context.Context, fetches kgo.Fetches) (map[Partition]Batch, error) {
	out := map[Partition]Batch{}
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 {
			k := Partition{Topic: p.Topic, ID: p.Partition}
			// There may be several answers with records of a partition.
			out[k] = Batch{append(out[k].Records, p.Records...), p.HighWatermark}
		}
	})
	if ctx.Err() != nil {
		return out, nil //nolint:nilerr // records come first, the next poll shows the error
	}
	errs := fetches.Errors()
	if len(errs) == 0 {
		return out, nil
	}
	e := errs[0]
	if errors.Is(e.Err, kerr.UnknownTopicID) || errors.Is(e.Err, kerr.InconsistentTopicID) {
		e.Err = fmt.Errorf("%w: %w", ErrTopicReplaced, e.Err)
	}
	return out, fmt.Errorf("kafka: fetch %s/%d: %w", e.Topic, e.Partition, e.Err)
}

// ErrTopicReplaced says that a topic is not the one that the session subscribed to: it was
// deleted, and perhaps created again. Only a new session reads the new one.
var ErrTopicReplaced = errors.New("kafka: the topic was deleted or replaced")

// ErrNotMember says that the group has removed this member.
var ErrNotMember = errors.New("kafka: not a member of the group any more")

// Commit commits the offsets of the next records, and waits for the answer. It retries for
// 10 s. Errors: ErrNotMember, after which others may own the partitions, and those of
// Kafka.
func (s *Session) Commit(ctx context.Context, next map[Partition]int64) error {
	if len(next) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	for pause := firstCommitPause; ; pause *= 2 {
		err := s.commit(ctx, next)
		if err == nil || errors.Is(err, ErrNotMember) {
			return err
		}
		if wait.For(ctx, pause) != nil {
			return err
		}
	}
}

// firstCommitPause is before the first retry of a commit; it doubles.
const firstCommitPause = 100 * time.Millisecond

// commit commits once.
func (s *Session) commit(ctx context.Context, next map[Partition]int64) error {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for p, o := range next {
		if offsets[p.Topic] == nil {
			offsets[p.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.Topic][p.ID] = kgo.EpochOffset{Epoch: -1, Offset: o}
	}
	var failed error
	s.c.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *commitRequest, res *commitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, t := range res.Topics {
			for _, p := range t.Partitions {
				if err := errorFor(p.ErrorCode); err != nil {
					failed = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	})
	switch {
	case failed == nil:
		return nil
	case errors.Is(failed, kerr.UnknownMemberID), errors.Is(failed, kerr.IllegalGeneration),
		errors.Is(failed, kerr.FencedInstanceID):
		return fmt.Errorf("%w: %w", ErrNotMember, failed)
	}
	return fmt.Errorf("kafka: commit: %w", failed)
}

// Rewind seeks back in a partition, so that the record at an offset is fetched again.
func (s *Session) Rewind(p Partition, offset int64) {
	s.c.SetOffsets(map[string]map[int32]kgo.EpochOffset{p.Topic: {p.ID: {Epoch: -1, Offset: offset}}})
}

// Pause stops the fetching of a partition until Resume; the others continue.
func (s *Session) Pause(p Partition) { s.c.PauseFetchPartitions(map[string][]int32{p.Topic: {p.ID}}) }

// Resume ends a Pause.
func (s *Session) Resume(p Partition) { s.c.ResumeFetchPartitions(map[string][]int32{p.Topic: {p.ID}}) }

// Ends returns the offsets at which the partitions of topics end for readers of committed
// records. Unlike the other methods any goroutine may call it, until Close.
func (s *Session) Ends(ctx context.Context, topics []string) (map[Partition]int64, error) {
	list, err := kadm.NewClient(s.c).ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("kafka: list offsets: %w", err)
	}
	ends := map[Partition]int64{}
	list.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			ends[Partition{Topic: o.Topic, ID: o.Partition}] = o.Offset
		}
	})
	return ends, nil
}

// Done says that the batch of the last Poll was handled: rebalances may happen.
func (s *Session) Done() { s.c.AllowRebalance() }

// Close leaves the group.
func (s *Session) Close() {
	s.c.AllowRebalance()
	if s.instance != "" {
		s.leave()
	}
	s.c.Close()
}

// leaveTimeout bounds how long the departure of a static member takes.
const leaveTimeout = 2 * time.Second

// leave has a static member leave its group. The client of Kafka does not: it assumes that
// a process with the same name follows before the session runs out. The id of the member is part
// of the request, so that a process that has taken the name meanwhile remains a member. Without
// an id a request to join may have been under way, which the name undoes.
func (s *Session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = s.c.LeaveGroupContext(ctx) // stops heartbeats, and gives partitions up
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = s.group
	member := kmsg.NewLeaveGroupRequestMember()
	member.InstanceID = &s.instance
	member.MemberID, _ = s.c.GroupMetadata()
	req.Members = append(req.Members, member)
	_, _ = req.RequestWith(ctx, s.c) // otherwise its session runs out
}

// RemoveMember removes a static member, whose process has died, from a group. Its partitions go
// to the other members. There may be no such member.
func RemoveMember(ctx context.Context, addr, group, instance string, more ...Option) error {
	c, err := kgo.NewClient(append(slices.Clone(more), seeds(addr), kgo.ClientID("parley-liveness"),
		kgo.DisableClientMetrics())...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	left, err := kadm.NewClient(c).LeaveGroup(ctx,
		kadm.LeaveGroup(group).Reason("the process has died").InstanceIDs(instance))
	if err == nil {
		err = left.Error()
	}
	if err != nil && !errors.Is(err, kerr.UnknownMemberID) {
		return fmt.Errorf("kafka: remove %s from %s: %w", instance, group, err)
	}
	return nil
}
