package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// Offline is the data directory of a server that does not run. It holds the
// directory's lock, so that no server starts meanwhile. It belongs to one goroutine.
type Offline struct {
	Store *embedded.Store
	Raw   *raw.Store
	// Records are those of durable topics and of the event log.
	Records store.Records

	logs   *commitlog.Local
	topics versions.State
}

// Repaired is what a repair of a store did.
type Repaired = embedded.Repaired

// Errors of a store that [Repair] repairs.
var (
	ErrDamaged = embedded.ErrDamaged
	ErrLost    = embedded.ErrLost
)

// HowToRepair is what an operator does about damage of the store.
const HowToRepair = embedded.HowToRepair

// Repair builds another store from what can be read of a damaged one. It leaves a store that is whole as it
// is. See embedded.Repair.
func Repair(ctx context.Context, cfg Config) (Repaired, error) {
	return embedded.Repair(ctx, embedded.Options{Dir: cfg.Embedded.DataDir, Logger: cfg.Logger})
}

// OpenOffline opens a data directory that is there: to check it, which changes
// nothing, or to repair it. Errors: embedded.ErrLocked while a server runs,
// embedded.ErrLost for a repair of a store that lacks what was acknowledged, unless that
// is accepted, and those of the files.
func OpenOffline(cfg Config, repair bool) (*Offline, error) {
	dir := filepath.Join(cfg.Embedded.DataDir, "store")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there: nothing to check", dir)
	}
	st, err := embedded.Open(embedded.Options{Dir: cfg.Embedded.DataDir, Logger: cfg.Logger, Fatal: cfg.Fatal,
		ReadOnly: !repair, AcceptLoss: cfg.Embedded.AcceptLoss})
	if err != nil {
		return nil, err
	}
	o := &Offline{Store: st, Raw: raw.New(st, cfg.Embedded.DataDir), Records: records.Of(st)}
	o.logs = commitlog.NewLocal(o.Records, time.Now)
	if o.topics, err = versions.Load(context.Background(), st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return o, nil
}

// PartitionOf is where the events of a key are published now.
func (o *Offline) PartitionOf(topic, key string) kafka.Partition {
	return o.topics.PartitionOf(topic, key)
}

// Published is a partition of the event log.
type Published struct {
	kafka.Partition
	// Since is from when on the partition has all events, in unix ms: the time of its first record if it was trimmed, or
	// when it took the place of an earlier topic's; 0 if it has all that there ever were.
	Since int64

	id commitlog.Partition
}

// LogMoved reports whether the event log is in the store. That of an earlier release moves there with the next start.
func (o *Offline) LogMoved(ctx context.Context) (bool, error) { return upgrade.Done(ctx, o.Store) }

// Published are the partitions of the event log, of all topics that it has.
func (o *Offline) Published(ctx context.Context) (list []Published, err error) {
	topics, err := o.logs.EventTopics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		v, _ := o.topics.Find(t.Name)
		for id := range t.Partitions {
			p := Published{Partition: kafka.Partition{Topic: t.Name, ID: id}, Since: v.From,
				id: commitlog.Partition{Topic: t.Number, Number: id}}
			start, _, err := o.logs.Bounds(ctx, p.id)
			if err != nil {
				return nil, err
			}
			if start > 0 {
				first, ok, err := o.logs.ExtentFrom(ctx, p.id, start)
				if err != nil {
					return nil, err
				}
				if ok {
					p.Since = max(p.Since, first.Time)
				}
			}
			list = append(list, p)
		}
	}
	return list, nil
}

// readBytes is how many bytes of batches are read together.
const readBytes = 1 << 20

// Events calls each with the events that a partition has: by chat and version, or by the id of an event whose record is
// a copy. Events that cannot be read are left out.
func (o *Offline) Events(ctx context.Context, p Published, each func(chat string, version int64, id string)) error {
	next, end, err := o.logs.Bounds(ctx, p.id)
	for err == nil && next < end {
		var list []*commitlog.Batch
		list, err = o.logs.Read(ctx, p.id, next, readBytes)
		var bad *commitlog.CorruptError
		switch {
		case errors.As(err, &bad):
			next, err = bad.To, nil
		case errors.Is(err, commitlog.ErrBeyondEnd), err == nil && len(list) == 0:
			return nil
		}
		for _, b := range list {
			eventsOf(b, each)
			next = b.End()
		}
	}
	return err
}

func eventsOf(b *commitlog.Batch, each func(chat string, version int64, id string)) {
	if b.Form == commitlog.References {
		for _, r := range b.References().List {
			each(r.Chat, r.Version, "")
		}
		return
	}
	for i := range b.Count() {
		for _, h := range b.Record(i).Headers {
			if h.Key == kafka.HeaderEventID {
				each("", 0, string(h.Value))
			}
		}
	}
}

// Close releases the directory.
func (o *Offline) Close() error { return o.Store.Close() }
