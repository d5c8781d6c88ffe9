package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
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
	// TopicLogs are the records in which the logs of topics are kept.
	TopicLogs store.Records

	cfg   Config
	state *logState
	log   *logdir.Report
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
	o := &Offline{Store: st, Raw: raw.New(st, cfg.Embedded.DataDir), TopicLogs: records.Of(st), cfg: cfg}
	if o.state, err = loadLogState(context.Background(), cfg, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return o, nil
}

// CheckLog reads all of the event log and returns what is wrong with it, a line for each
// partition or file. Nothing is changed.
func (o *Offline) CheckLog() (lines []string, err error) {
	if o.log, err = kafka.CheckLog(filepath.Join(o.cfg.Embedded.DataDir, "log"), o.Topics(), o.state.marks); err != nil {
		return nil, err
	}
	lines = append(lines, o.log.Notes...)
	for _, u := range o.log.Unreadable {
		lines = append(lines, u.String())
	}
	for _, d := range o.log.Damage {
		lines = append(lines, d.String())
	}
	if len(o.state.lost) > 0 {
		lines = append(lines, fmt.Sprintf("events of %d partitions that the log lost are not back in the outbox yet",
			len(o.state.lost)))
	}
	return lines, nil
}

// Topics are those that the log has: of a topic that got another number of partitions the
// earlier ones, too.
func (o *Offline) Topics() []kafka.Topic { return o.state.all() }

// Place is where the events of a key are published now.
func (o *Offline) Place(topic, key string) kafka.Partition { return o.state.topics.Place(topic, key) }

// LogSince is from when on a partition has all events, in unix ms: the time of the oldest
// record of one that was trimmed, or when it took the place of an earlier topic's; 0 if it
// has all that there ever were. CheckLog comes first.
func (o *Offline) LogSince(p kafka.Partition) int64 {
	v, _ := o.state.topics.Find(p.Topic)
	m := o.log.Marks[p]
	if m.Start == 0 {
		return v.From
	}
	return max(m.Since, v.From)
}

// Logged is an event of a chat as the log has it.
type Logged struct {
	ID, Type string
	Payload  []byte // as the store has it; nil: the record has none
}

// Event decodes it; nil if this version does not know it.
func (l Logged) Event() event.Event {
	e, err := event.Unmarshal(l.Type, l.Payload)
	if err != nil || len(l.Payload) == 0 {
		return nil
	}
	return e
}

// Records reads the events that a partition has, oldest first. Each gets one that is valid until it
// returns.
func (o *Offline) Records(p kafka.Partition, each func(Logged)) error {
	return logdir.Records(filepath.Join(o.cfg.Embedded.DataDir, "log"), p, func(r *logdir.Record) {
		each(Logged{ID: r.Headers[kafka.HeaderEventID], Type: r.Headers[kafka.HeaderEventType], Payload: unframe(r.Value)})
	})
}

// RepairLog does what a start does: it repairs the files and puts the events that the log
// lost back into the outbox.
func (o *Offline) RepairLog() error {
	cfg, mode := o.cfg, *o.cfg.Embedded
	mode.Kafka, mode.KafkaFallback = "127.0.0.1:0", true
	cfg.Embedded = &mode
	b, err := openLog(cfg, o.Store)
	if err != nil {
		return err
	}
	b.Close()
	o.state, err = loadLogState(context.Background(), o.cfg, o.Store)
	return err
}

// Close releases the directory.
func (o *Offline) Close() error { return o.Store.Close() }
