package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/engine/restore"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

// shownDamage bounds the lines about damaged partitions at a start.
const shownDamage = 10

// openLog opens the embedded log, and puts back into the outbox what it has lost and the
// store has. The store's lock on the data directory is the log's, too.
func openLog(cfg Config, st *embedded.Store) (*kafka.Broker, error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx := context.Background()
	dir := filepath.Join(cfg.DataDir, "log")
	k, err := loadKnown(ctx, st)
	if err != nil {
		return nil, err
	}
	if err := k.noticeAbsence(ctx, dir, log); err != nil {
		return nil, err
	}
	password, err := port.Password(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("read the password of the Kafka port: %w", err)
	}
	b, err := kafka.OpenBroker(kafka.BrokerConfig{
		Dir: dir, Topics: k.topics.All(), Listen: cfg.Kafka, Fallback: cfg.KafkaFallback, Groups: cfg.Groups, Readers: password, Logger: cfg.Logger, Known: k.marks, Keep: k.keep,
		Damaged: func(list []kafka.Damage) error { return k.damaged(ctx, list, log) },
	})
	if err != nil {
		return nil, err
	}
	err = port.Credentials{Address: b.Addr(), Password: password}.Save(cfg.DataDir)
	if err == nil {
		err = checkAhead(ctx, cfg, st, b, log)
	}
	if err == nil {
		err = k.restore(ctx, b, log)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// known is what the store knows of the log: the row of table meta.
type known struct {
	store  store.Store
	topics versions.State

	mu    sync.Mutex
	marks kafka.Marks // nil: nothing
	lost  []restore.Lost
}

func loadKnown(ctx context.Context, st store.Store) (*known, error) {
	topics, err := versions.Load(ctx, st)
	if err != nil {
		return nil, err
	}
	k := &known{store: st, topics: topics}
	it, err := st.Get(ctx, table.LogKey(), store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read the log's marks: %w", err)
	}
	for _, line := range it.Get(table.AttrLogMarks).Strings() {
		var p kafka.Partition
		var m logdir.Mark
		if _, err := fmt.Sscanf(line, "%s %d %d %d %d", &p.Topic, &p.ID, &m.Start, &m.End, &m.Since); err != nil {
			return nil, fmt.Errorf("the log's marks in the store cannot be read: %.100q", line)
		}
		if k.marks == nil {
			k.marks = kafka.Marks{}
		}
		k.marks[p] = m
	}
	for _, line := range it.Get(table.AttrLogLost).Strings() {
		var l restore.Lost
		if _, err := fmt.Sscanf(line, "%s %d %d", &l.Topic, &l.ID, &l.Since); err != nil {
			return nil, fmt.Errorf("the log's losses in the store cannot be read: %.100q", line)
		}
		k.lost = append(k.lost, l)
	}
	return k, nil
}

// write writes the row; mu is held.
func (k *known) write(ctx context.Context) error {
	lines := func(n int, line func(i int) string) store.Value {
		list := make([]string, n)
		for i := range list {
			list[i] = line(i)
		}
		slices.Sort(list)
		return store.List(list)
	}
	parts := make([]kafka.Partition, 0, len(k.marks))
	for p := range k.marks {
		parts = append(parts, p)
	}
	it := store.NewItem(
		store.Attr{Name: table.AttrLogMarks, Value: lines(len(parts), func(i int) string {
			p, m := parts[i], k.marks[parts[i]]
			return fmt.Sprintf("%s %d %d %d %d", p.Topic, p.ID, m.Start, m.End, m.Since)
		})},
		store.Attr{Name: table.AttrLogLost, Value: lines(len(k.lost), func(i int) string {
			l := k.lost[i]
			return fmt.Sprintf("%s %d %d", l.Topic, l.ID, l.Since)
		})},
	)
	return k.store.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: table.LogKey(), Item: it}})
}

// keep keeps marks.
func (k *known) keep(ctx context.Context, marks kafka.Marks) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.marks = marks
	return k.write(ctx)
}

// noticeAbsence notices that a store with chats has no log at all, where it was never
// known what the log held.
func (k *known) noticeAbsence(ctx context.Context, dir string, log *slog.Logger) error {
	if k.marks != nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "partitions")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	page, err := k.store.Scan(ctx, store.Scan{Table: store.ChatCounters, Segments: 1, Limit: 1})
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	log.Warn("there is no log; the store's events are published again", "dir", dir)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range kafka.Topics() {
		v := k.topics.Current(t.Name)
		for id := range v.Partitions {
			k.lost = append(k.lost, restore.Lost{Partition: kafka.Partition{Topic: versions.Name(t.Name, v.Number), ID: id}, Since: v.From})
		}
	}
	return k.write(ctx)
}

// damaged remembers what was lost before anything is mended: from then on the files do
// not show it any more.
func (k *known) damaged(ctx context.Context, list []kafka.Damage, log *slog.Logger) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, d := range list {
		remedy := "its events are published again from the store"
		v, _ := k.topics.Find(d.Topic)
		switch {
		case d.Topic == kafka.DeadLetters:
			remedy = "dead letters are in no other place; replay publishes events of the time again"
		case v.Status != versions.Current:
			remedy = "nothing is published again: all groups had read this topic when another took its place"
		}
		if i < shownDamage {
			log.Error("the log is damaged", "damage", d.String(), "remedy", remedy)
		}
		if v.Status == versions.Current {
			k.lost = append(k.lost, restore.Lost{Partition: d.Partition, Since: max(d.Since, v.From)})
		}
	}
	if n := len(list) - shownDamage; n > 0 {
		log.Error("more partitions of the log are damaged", "partitions", n)
	}
	return k.write(ctx)
}

// restore puts what was lost back into the outbox.
func (k *known) restore(ctx context.Context, b *kafka.Broker, log *slog.Logger) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.lost) == 0 {
		return nil
	}
	for i := range k.lost { // a time to come is of a clock that was wrong
		if k.lost[i].Since > time.Now().UnixMilli() {
			k.lost[i].Since = 0
		}
	}
	report, err := restore.Run(ctx, restore.Config{Store: k.store, Clock: time.Now, Lost: k.lost, Read: b.Read, Topics: k.topics})
	if err != nil {
		return fmt.Errorf("restore the log: %w", err)
	}
	log.Warn("events that the log lost will be published again", "events", report.Events, "chats", report.Chats)
	k.lost = nil
	return k.write(ctx)
}

// aheadTime bounds the look at the log's ends.
const aheadTime = 10 * time.Second

// checkAhead refuses a store that is behind its log: what is published was on the disk
// before, so the store has lost it. The last event of each partition tells.
func checkAhead(ctx context.Context, cfg Config, st *embedded.Store, b *kafka.Broker, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	ends, err := b.Ends(ctx)
	if err != nil {
		return err
	}
	for _, r := range ends {
		e := eventOf(r)
		if e == nil || e.GetMetadata().GetGeneration() != st.Generation() {
			continue
		}
		key := table.EventKey(e.GetChatId(), e.GetMetadata().GetVersion())
		it, err := st.Get(ctx, key, store.Strong)
		if err != nil {
			return fmt.Errorf("compare the store with the log: %w", err)
		}
		if it != nil {
			continue
		}
		err = embedded.Lost(fmt.Sprintf("the log has version %d of chat %s (%s/%d, offset %d), the store does not", e.GetMetadata().GetVersion(), e.GetChatId(), r.Topic, r.Partition, r.Offset), st.Generation())
		if cfg.AcceptLoss != st.Generation() {
			return err
		}
		log.Warn("going on without data that was acknowledged", "error", err)
		return st.Renew()
	}
	return nil
}

// eventOf reads a record's event; nil if it is none that this process knows.
func eventOf(r *kafka.Record) event.Event {
	for _, h := range r.Headers {
		if h.Key == kafka.HeaderEventType {
			return decodeFramed(string(h.Value), r.Value)
		}
	}
	return nil
}

func decodeFramed(eventType string, value []byte) event.Event {
	const frame = 6 // a zero byte, the schema's id, and the first message of its file
	if len(value) <= frame {
		return nil
	}
	e, err := event.Unmarshal(eventType, value[frame:])
	if err != nil {
		return nil
	}
	return e
}
