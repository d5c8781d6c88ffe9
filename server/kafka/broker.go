package kafka

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// BrokerConfig sets the embedded broker up.
type BrokerConfig struct {
	// Dir holds the log. The caller has locked the data directory above it: the
	// broker itself does not notice a second process.
	Dir string
	// Listen is the address on loopback, host:port; port 0 takes a free one.
	Listen string
	// Fallback takes a free port if the one in Listen is in use.
	Fallback bool
	// MaxBytes caps the log; what was committed by Groups is trimmed beyond it. 0:
	// 512 MB.
	MaxBytes int64
	// Groups must have read what is trimmed.
	Groups []string
	Logger *slog.Logger
}

const defaultMaxBytes = 512 << 20

// Broker is a broker in this process that speaks Kafka's protocol on loopback and
// keeps its log on disk. It is made for one machine; acks=all here means that the
// operating system has the record, and Stable that the disk has.
type Broker struct {
	cfg     BrokerConfig
	cluster *kfake.Cluster
	addr    string

	syncing sync.Mutex       // one sync at a time
	synced  map[string]state // by path, as of the last sync; guarded by syncing
}

// state tells whether a file has changed.
type state struct {
	size int64
	at   time.Time
}

// OpenBroker starts the broker with all declared topics.
func OpenBroker(cfg BrokerConfig) (*Broker, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("kafka listen address must be host:port, not %q", cfg.Listen)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("the embedded Kafka endpoint listens on loopback only, not on %q", host)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("kafka listen port %q", port)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create log directory: %w", err)
	}
	b := &Broker{cfg: cfg, synced: map[string]state{}}
	if n, err = b.freePort(host, n); err != nil {
		return nil, err
	}
	unended, err := openTxns(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	b.cluster, err = kfake.NewCluster(
		kfake.NumBrokers(1), kfake.Ports(n), kfake.ClusterID("parley"), kfake.DataDir(cfg.Dir),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			if err != nil {
				return nil, err
			}
			return guard(l), nil
		}),
		kfake.BrokerConfigs(map[string]string{
			// Retention is ours: the broker's trims a partition to nothing, after which
			// offsets begin at 0 again, and stops after a restart.
			"log.retention.ms": "-1", "log.retention.bytes": "-1", "log.segment.bytes": strconv.Itoa(16 << 20),
			"group.initial.rebalance.delay.ms": "0", "transaction.max.timeout.ms": "60000",
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	b.addr = b.cluster.ListenAddrs()[0]
	if err := b.recover(unended); err != nil {
		b.cluster.Close()
		return nil, err
	}
	return b, nil
}

// recover makes the log ready for use, whatever the last process left.
func (b *Broker) recover(unended []openTxn) error {
	if err := b.abort(unended); err != nil {
		return err
	}
	if err := b.createTopics(); err != nil {
		return err
	}
	return b.resetOffsets()
}

// freePort finds out whether the port can be had, because the broker does not say
// what is wrong with it.
func (b *Broker) freePort(host string, port int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) && b.cfg.Fallback {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return 0, fmt.Errorf("listen for Kafka on %s: %w", b.cfg.Listen, err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// createTopics makes what is missing; topics that the broker makes by itself would
// vanish in a crash.
func (b *Broker) createTopics() error {
	for _, t := range Topics() {
		switch infos := b.cluster.PartitionInfos(t.Name); {
		case len(infos) == int(t.Partitions):
			continue
		case len(infos) > 0:
			return fmt.Errorf("topic %s has %d partitions in the log, %d are declared", t.Name, len(infos), t.Partitions)
		}
		configs := map[string]string{}
		for k, v := range t.Configs {
			if k == "min.insync.replicas" { // there is one broker
				v = "1"
			}
			if k == "retention.ms" || k == "retention.bytes" { // see BrokerConfigs
				v = "-1"
			}
			configs[k] = v
		}
		if err := b.cluster.CreateTopic(t.Name, t.Partitions, configs); err != nil {
			return fmt.Errorf("create topic %s: %w", t.Name, err)
		}
	}
	return nil
}

// Addr is the address to connect to.
func (b *Broker) Addr() string { return b.addr }

// Stable returns when everything that was acknowledged before is on the disk. The
// broker writes its files without buffers of its own, so it is enough to sync
// those that have changed, one at a time.
func (b *Broker) Stable(ctx context.Context) error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	dirs := map[string]bool{}
	err := filepath.WalkDir(b.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // trimmed meanwhile
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		now := state{info.Size(), info.ModTime()}
		old, known := b.synced[path]
		if known && old == now {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := syncFile(path); err != nil {
			return err
		}
		if !known {
			dirs[filepath.Dir(path)] = true
		}
		b.synced[path] = now
		return nil
	})
	if err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	for dir := range dirs { // a new file is only there once its directory says so
		for ; len(dir) >= len(b.cfg.Dir); dir = filepath.Dir(dir) {
			if err := syncDir(dir); err != nil {
				return fmt.Errorf("sync log: %w", err)
			}
		}
	}
	return nil
}

func syncFile(path string) error { return syncPath(path, os.O_RDWR) }

// syncDir makes new names durable; Windows does so by itself.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return syncPath(path, os.O_RDONLY)
}

func syncPath(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Bytes is the size of the log.
func (b *Broker) Bytes() int64 {
	var n int64
	for _, t := range Topics() {
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			n += p.NumBytes
		}
	}
	return n
}

// Trim removes the oldest records beyond the cap that all groups have read, and
// reports whether the log still is larger than its cap. The last record of a
// partition always stays: a partition without any would begin at offset 0 again
// after a restart.
func (b *Broker) Trim() (full bool, err error) {
	if b.Bytes() <= b.cfg.MaxBytes {
		return false, nil
	}
	for _, t := range Topics() {
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			upTo := p.HighWatermark - 1
			for _, g := range b.cfg.Groups {
				upTo = min(upTo, b.committed(g, t.Name, p.Partition))
			}
			if upTo <= p.LogStartOffset {
				continue
			}
			if err := b.cluster.DeleteRecords(t.Name, p.Partition, upTo); err != nil {
				return false, fmt.Errorf("trim %s/%d: %w", t.Name, p.Partition, err)
			}
		}
	}
	return b.Bytes() > b.cfg.MaxBytes, nil
}

func (b *Broker) committed(group, topic string, partition int32) int64 {
	info := b.cluster.GroupInfo(group)
	if info == nil {
		return 0
	}
	return info.Commits[topic][partition].Offset
}

// Close stops the broker.
func (b *Broker) Close() { b.cluster.Close() }
