package backend

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

	"github.com/parley-chat/parley/server/backend/restore"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/search"
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
	dir := filepath.Join(cfg.Embedded.DataDir, "log")
	s, err := loadLogState(ctx, cfg, st)
	if err != nil {
		return nil, err
	}
	if err := s.noticeAbsence(ctx, dir, log); err != nil {
		return nil, err
	}
	password, err := port.Password(cfg.Embedded.DataDir)
	if err != nil {
		return nil, fmt.Errorf("read the password of the Kafka port: %w", err)
	}
	b, err := kafka.OpenBroker(kafka.BrokerConfig{
		Dir: dir, Topics: s.all(), Listen: cfg.Embedded.Kafka, Fallback: cfg.Embedded.KafkaFallback,
		Connections: cfg.Embedded.KafkaConnections, MaxBytes: cfg.Embedded.LogBytes,
		Readers: password, Logger: cfg.Logger, Known: s.marks, Keep: s.saveMarks,
		Damaged: func(list []kafka.Damage) error { return s.damaged(ctx, list, log) },
	})
	if err != nil {
		return nil, err
	}
	err = port.Credentials{Address: b.Addr(), Password: password}.Save(cfg.Embedded.DataDir)
	if err == nil {
		err = checkAhead(ctx, cfg, st, b, log)
	}
	if err == nil {
		err = s.restore(ctx, b, log)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// logState is what the store remembers of the log: a row of the table meta.
type logState struct {
	store  store.Store
	topics versions.State
	search search.Targets
	counts map[string]int32 // of partitions, of the topics that the log had at the start

	mu    sync.Mutex
	marks kafka.Marks // nil: nothing
	lost  []restore.Lost
}

func loadLogState(ctx context.Context, cfg Config, st store.Store) (*logState, error) {
	topics, err := versions.Load(ctx, st)
	if err != nil {
		return nil, err
	}
	s := &logState{store: st, topics: topics, search: cfg.Embedded.Search}
	if s.search == nil {
		s.search = search.DefaultTargets()
	}
	if s.counts, err = logdir.Counts(filepath.Join(cfg.Embedded.DataDir, "log")); err != nil {
		return nil, err
	}
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
		if s.marks == nil {
			s.marks = kafka.Marks{}
		}
		s.marks[p] = m
	}
	for _, line := range it.Get(table.AttrLogLost).Strings() {
		var l restore.Lost
		if _, err := fmt.Sscanf(line, "%s %d %d", &l.Topic, &l.ID, &l.Since); err != nil {
			return nil, fmt.Errorf("the log's losses in the store cannot be read: %.100q", line)
		}
		s.lost = append(s.lost, l)
	}
	return s, nil
}

// all lists the topics of the log.
func (s *logState) all() []kafka.Topic {
	list := append(s.topics.All(), s.search.Undeclared()...)
	for i := range list {
		list[i].Partitions = s.partitions(list[i])
	}
	return list
}

// partitions is how many partitions a topic of the log has. One process writes all search
// events, and each partition costs files: a topic of them has one, unless it was made with
// more.
func (s *logState) partitions(t kafka.Topic) int32 {
	if t.Kind != kafka.Searches && t.Kind != kafka.SearchLetters {
		return t.Partitions
	}
	return max(s.counts[t.Name], 1)
}

// write writes the row; mu is held.
func (s *logState) write(ctx context.Context) error {
	lines := func(n int, line func(i int) string) store.Value {
		list := make([]string, n)
		for i := range list {
			list[i] = line(i)
		}
		slices.Sort(list)
		return store.List(list)
	}
	parts := make([]kafka.Partition, 0, len(s.marks))
	for p := range s.marks {
		parts = append(parts, p)
	}
	it := store.NewItem(
		store.Attr{Name: table.AttrLogMarks, Value: lines(len(parts), func(i int) string {
			p, m := parts[i], s.marks[parts[i]]
			return fmt.Sprintf("%s %d %d %d %d", p.Topic, p.ID, m.Start, m.End, m.Since)
		})},
		store.Attr{Name: table.AttrLogLost, Value: lines(len(s.lost), func(i int) string {
			l := s.lost[i]
			return fmt.Sprintf("%s %d %d", l.Topic, l.ID, l.Since)
		})},
	)
	return s.store.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: table.LogKey(), Item: it}})
}

// saveMarks writes marks.
func (s *logState) saveMarks(ctx context.Context, marks kafka.Marks) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = marks
	return s.write(ctx)
}

// noticeAbsence notices that a store with chats has no log at all, where nothing
// says what the log had.
func (s *logState) noticeAbsence(ctx context.Context, dir string, log *slog.Logger) error {
	if s.marks != nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "partitions")); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	page, err := s.store.Scan(ctx, store.Scan{Table: store.ChatCounters, Segments: 1, Limit: 1})
	if err != nil || len(page.Rows) == 0 {
		return err
	}
	log.Warn("there is no log; the store's events are published again", "dir", dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range kafka.Topics() {
		v := s.topics.Current(t.Name)
		t.Name, t.Partitions = versions.Name(t.Name, v.Number), v.Partitions
		for id := range s.partitions(t) {
			s.lost = append(s.lost, restore.Lost{Partition: kafka.Partition{Topic: t.Name, ID: id}, Since: v.From})
		}
	}
	return s.write(ctx)
}

// damaged records what was lost before anything is repaired: afterwards the files do not
// show it any more.
func (s *logState) damaged(ctx context.Context, list []kafka.Damage, log *slog.Logger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := map[string]kafka.Kind{}
	for _, t := range s.all() {
		kinds[t.Name] = t.Kind
	}
	for i, d := range list {
		remedy := "its events are published again from the store"
		v, _ := s.topics.Find(d.Topic)
		if kinds[d.Topic] == kafka.Searches {
			v.Status = versions.Current // declared or not
		}
		switch {
		case kinds[d.Topic] == kafka.Letters || kinds[d.Topic] == kafka.SearchLetters:
			remedy = "dead letters are in no other place; replay publishes events of the time again"
		case v.Status != versions.Current:
			remedy = "nothing is published again: all groups had read this topic when another took its place"
		}
		if i < shownDamage {
			log.Error("the log is damaged", "damage", d.String(), "remedy", remedy)
		}
		if v.Status == versions.Current {
			s.lost = append(s.lost, restore.Lost{Partition: d.Partition, Since: max(d.Since, v.From)})
		}
	}
	if n := len(list) - shownDamage; n > 0 {
		log.Error("more partitions of the log are damaged", "partitions", n)
	}
	return s.write(ctx)
}

// restore puts what was lost back into the outbox.
func (s *logState) restore(ctx context.Context, b *kafka.Broker, log *slog.Logger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lost) == 0 {
		return nil
	}
	for i := range s.lost { // a time in the future is from a wrong clock
		if s.lost[i].Since > time.Now().UnixMilli() {
			s.lost[i].Since = 0
		}
	}
	partitions := map[string]int{}
	for _, t := range s.all() {
		if t.Kind == kafka.Searches {
			partitions[t.Name] = int(t.Partitions)
		}
	}
	// Also on a full disk: each row announces a run of events, and the server does not start without them.
	report, err := restore.Run(ctx, restore.Config{Store: store.Freeing(s.store), Clock: time.Now, Lost: s.lost,
		Read: b.Read, Topics: s.topics, Search: s.search, Partitions: partitions})
	if err != nil {
		return fmt.Errorf("restore the log: %w", err)
	}
	log.Warn("events that the log lost will be published again", "events", report.Events, "chats", report.Chats)
	s.lost = nil
	return s.write(ctx)
}

// aheadTime bounds the reading of the log's ends.
const aheadTime = 10 * time.Second

// checkAhead refuses a store that is behind its log: what is published was on the disk
// before, so the store has lost it. The last event of each partition shows it.
func checkAhead(ctx context.Context, cfg Config, st *embedded.Store, b *kafka.Broker, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	ends, err := b.Ends(ctx)
	if err != nil {
		return err
	}
	var lost error
	var generations []string // of what the store has lost
	for _, r := range ends {
		e := eventOf(r)
		if e == nil || st.Dropped(e.GetMetadata().GetGeneration()) {
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
		generations = append(generations, e.GetMetadata().GetGeneration())
		lost = embedded.Lost(fmt.Sprintf("the log has version %d of chat %s (%s/%d, offset %d), the store does not",
			e.GetMetadata().GetVersion(), e.GetChatId(), r.Topic, r.Partition, r.Offset), st.Generation())
	}
	if lost == nil || !st.Holds(cfg.Embedded.AcceptLoss, 0) {
		return lost
	}
	log.Warn("continuing without data that was acknowledged", "error", lost)
	slices.Sort(generations)
	return st.Renew(slices.Compact(generations)...)
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
	return Logged{Type: eventType, Payload: unframe(value)}.Event()
}

// unframe is a record's value without its frame; nil if it has none.
func unframe(value []byte) []byte {
	const frame = 6 // a zero byte, the schema's id, and the first message of its file
	if len(value) <= frame {
		return nil
	}
	return value[frame:]
}
