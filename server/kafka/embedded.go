package kafka

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/memory"
)

// BrokerConfig configures the embedded broker.
type BrokerConfig struct {
	// Dir holds the log. The caller has locked the data directory above it: the broker
	// itself does not detect a second process.
	Dir string
	// Listen is the address on loopback, host:port; port 0 takes a free one.
	Listen string
	// Fallback uses a free port if the one in Listen is in use.
	Fallback bool
	// MaxBytes caps the log's files; Trim removes what is beyond it. 0: 512 MB, or a
	// sixteenth of the memory if that is less, because opening a log reads it into memory.
	MaxBytes int64
	// Readers is the password for reading by TCP; "" permits everything to everybody, for
	// tests.
	Readers string
	// Connections bounds those by TCP; 0: port.DefaultConnections.
	Connections int
	// Known are the marks that Keep last recorded: what of the log is on the disk. nil if
	// there are none.
	Known Marks
	// Topics are those of the log; nil: the declared ones. Add creates more.
	Topics []Topic
	// Damaged is called with the damage, before anything is changed: if it returns nil,
	// the damage is repaired. May be nil.
	Damaged func([]Damage) error
	// Keep records what is on the disk now, for the next start. Flush returns after it;
	// nothing is trimmed before it. May be nil.
	Keep   func(context.Context, Marks) error
	Logger *slog.Logger
}

// Marks say what of each partition is on the disk.
type Marks = map[Partition]logdir.Mark

// Damage is the loss of a partition.
type Damage = logdir.Damage

// Broker is a broker in this process that serves Kafka's protocol on loopback and stores
// its log on disk. It is made for one machine: acks=all means that the operating system
// has the record, and Flush that the disk has it.
type Broker struct {
	cfg     BrokerConfig
	cluster *kfake.Cluster
	port    *port.Port
	topics  atomic.Pointer[[]Topic]
	own     string // password of this process's clients
	addr    string
	// unreadable counts lost records of groups and producers; set before the broker starts
	unreadable int
	disk       diskLog

	syncing sync.Mutex       // one sync at a time
	synced  map[string]state // by path, as of the last sync; guarded by syncing
	marks   Marks            // as they were last recorded; guarded by syncing
}

// OpenBroker starts the broker with all declared topics.
func OpenBroker(cfg BrokerConfig) (*Broker, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = logdir.MaxBytes(memory.Total())
	}
	n, err := port.Free(cfg.Listen, cfg.Fallback)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create log directory: %w", err)
	}
	b := &Broker{cfg: cfg, own: rand.Text(), synced: map[string]state{}}
	b.disk.b = b
	if cfg.Topics == nil {
		cfg.Topics = Topics()
	}
	b.topics.Store(&cfg.Topics)
	if err := b.check(); err != nil {
		return nil, err
	}
	unended, err := logdir.OpenTxns(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	opts, err := b.options(n)
	if err != nil {
		return nil, err
	}
	b.cluster, err = kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	b.addr = b.cluster.ListenAddrs()[0]
	if err := b.recover(unended); err != nil {
		b.cluster.Close()
		return nil, err
	}
	b.reportOthers()
	return b, nil
}

// options are the settings of the broker.
func (b *Broker) options(tcp int) ([]kfake.Opt, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(tcp), kfake.ClusterID("parley"), kfake.DataDir(b.cfg.Dir), kfake.WithLogger(&b.disk),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address) //nolint:noctx // the broker gives none
			if err != nil {
				return nil, err
			}
			b.port = port.New(l, port.Config{Open: b.cfg.Readers == "", Connections: b.cfg.Connections, Logger: b.cfg.Logger})
			return b.port, nil
		}),
		kfake.BrokerConfigs(map[string]string{
			// Trim does the retention: the broker's own trims a partition to nothing, after
			// which offsets start at 0 again, and stops after a restart.
			"log.retention.ms": "-1", "log.retention.bytes": "-1",
			"log.segment.bytes":                strconv.FormatInt(logdir.SegmentBytes(b.cfg.MaxBytes), 10),
			"group.initial.rebalance.delay.ms": "0", "transaction.max.timeout.ms": "60000",
		}),
	}
	if b.cfg.Readers == "" {
		return opts, nil
	}
	var groups []string // readers on the port cannot join them
	for _, t := range Topics() {
		groups = append(groups, t.Readers...)
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	if err := port.Prepare(b.cfg.Dir, groups); err != nil {
		return nil, err
	}
	return append(opts, port.Locks(b.cfg.Readers, b.own, groups)...), nil
}

// recover makes the log ready for use after any end of the last process.
func (b *Broker) recover(unended []logdir.Txn) error {
	if err := b.abort(unended); err != nil {
		return err
	}
	if err := b.createTopics(); err != nil {
		return err
	}
	return b.resetOffsets()
}

// createTopics creates missing topics; topics that the broker creates by itself are lost
// in a crash.
func (b *Broker) createTopics() error {
	for _, t := range *b.topics.Load() {
		switch infos := b.cluster.PartitionInfos(t.Name); {
		case len(infos) == int(t.Partitions):
			continue
		case len(infos) > 0:
			return fmt.Errorf("topic %s has %d partitions in the log, %d are declared", t.Name, len(infos), t.Partitions)
		}
		if err := b.cluster.CreateTopic(t.Name, t.Partitions, embeddedConfigs(t)); err != nil {
			return fmt.Errorf("create topic %s: %w", t.Name, err)
		}
	}
	return nil
}

// Add creates a topic while the broker runs; an existing one must have as many partitions.
// It refuses more partitions than the log's cap has room for. The topic is on the disk when
// Add returns; from the next start on the caller must list it in BrokerConfig.Topics.
func (b *Broker) Add(ctx context.Context, t Topic) error {
	if err := b.declare(t); err != nil {
		return err
	}
	if err := b.createTopics(); err != nil {
		return err
	}
	if n := len(b.cluster.PartitionInfos(t.Name)); n != int(t.Partitions) {
		return fmt.Errorf("topic %s has %d partitions in the log, not %d", t.Name, n, t.Partitions)
	}
	return b.Flush(ctx)
}

// declare adds a topic to those of the log.
func (b *Broker) declare(t Topic) error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	list, n := *b.topics.Load(), t.Partitions
	for _, o := range list {
		if o.Name == t.Name {
			return nil
		}
		n += o.Partitions
	}
	if !b.hasRoom(n) {
		return fmt.Errorf("create topic %s: the log's cap of %d bytes has no room for %d partitions", t.Name, b.cfg.MaxBytes,
			n)
	}
	list = append(slices.Clone(list), t)
	b.topics.Store(&list)
	return nil
}

// SetReaders takes over which groups of Parley read topics of the log; topics that are not
// listed keep theirs. A topic can lose its readers while the broker runs.
func (b *Broker) SetReaders(topics []Topic) {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	list := slices.Clone(*b.topics.Load())
	for i := range list {
		if at := slices.IndexFunc(topics, func(t Topic) bool { return t.Name == list[i].Name }); at >= 0 {
			list[i].Readers = topics[at].Readers
		}
	}
	b.topics.Store(&list)
}

// embeddedConfigs are a topic's settings for one broker without retention of its own.
func embeddedConfigs(t Topic) map[string]string {
	configs := maps.Clone(t.Configs)
	configs["min.insync.replicas"], configs["retention.ms"], configs["retention.bytes"] = "1", "-1", "-1"
	return configs
}

// Addr is the address to connect to.
func (b *Broker) Addr() string { return b.addr }

// Options are the options by which clients in this process connect and authenticate. They do
// not ask for the state of transactions: this broker has written the markers of one when it
// answers its end, so a publisher need not wait for them. Nor do they compress small batches.
func (b *Broker) Options() []Option {
	if b.cfg.Readers == "" {
		return nil
	}
	known := kversion.Stable()
	known.SetMaxKeyVersion(int16(kmsg.DescribeTransactions), -1)
	return append(b.port.Options(b.own), kgo.MaxVersions(known), CompressLarge())
}

// PortStats are the connections of other programs.
func (b *Broker) PortStats() port.Stats { return b.port.Stats() }

// Watched reports whether programs beside this process are connected that may read.
func (b *Broker) Watched() bool { return b.port.Watched() }

// Descriptors is how many files the log has open at most: two for each partition that is
// written to, and one for each older segment that was read. Connections beyond the default count as
// written; the default ones are in the share of other ports.
func (b *Broker) Descriptors() (written, older int) {
	for _, t := range *b.topics.Load() {
		written += 2 * int(t.Partitions)
	}
	written += max(0, b.cfg.Connections-port.DefaultConnections)
	return written, int(b.cfg.MaxBytes / logdir.SegmentBytes(b.cfg.MaxBytes))
}

// Close stops the broker. It writes its lists last, readable by all users.
func (b *Broker) Close() {
	b.cluster.Close()
	_ = filepath.WalkDir(b.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return private(path, info)
	})
}
