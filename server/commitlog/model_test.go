package commitlog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// part is short, for functions in a line.
type part = commitlog.Partition

// model is a partition as a list of messages, with what its producers published.
type model struct {
	start   int64
	stored  []commitlogtest.Stored // all that ever were
	batches []int64                // ends
	numbers map[string]map[int64]int64
	low     map[string]int64 // numbers below are not remembered
}

func (m *model) end() int64 { return int64(len(m.stored)) }

func (m *model) trim(before int64) {
	for _, end := range m.batches {
		if end <= before {
			m.start = max(m.start, end)
		}
	}
}

// remember adds a producer's number and forgets the lowest of too many.
func (m *model) remember(id string, number, base int64) {
	if m.numbers == nil {
		m.numbers, m.low = map[string]map[int64]int64{}, map[string]int64{}
	}
	if m.numbers[id] == nil {
		m.numbers[id] = map[int64]int64{}
	}
	of := m.numbers[id]
	of[number] = base
	if len(of) > 64 {
		lowest := number
		for n := range of {
			lowest = min(lowest, n)
		}
		delete(of, lowest)
	}
	if len(of) == 64 {
		lowest := number
		for n := range of {
			lowest = min(lowest, n)
		}
		m.low[id] = lowest
	}
}

// world runs random operations on a log and a model of it.
type world struct {
	*rand.Rand
	t     *testing.T
	disk  *embeddedtest.Disk
	clock *commitlogtest.Clock
	store *embedded.Store
	log   *commitlog.Local
	parts map[commitlog.Partition]*model
	made  int
}

func (w *world) reopen() {
	if w.store != nil {
		if err := w.store.Close(); err != nil {
			w.t.Fatal(err)
		}
	}
	w.store = w.disk.Open(w.t, nil)
	w.log = commitlog.NewLocal(records.Of(w.store), w.clock.Now)
}

func (w *world) partition() commitlog.Partition {
	return commitlog.Partition{Topic: 1 + w.Uint64N(2), Number: w.Int32N(2)}
}

func (w *world) of(p commitlog.Partition) *model {
	if w.parts[p] == nil {
		w.parts[p] = &model{}
	}
	return w.parts[p]
}

func (w *world) step() error {
	switch n := w.IntN(100); {
	case n < 55:
		return w.append()
	case n < 70:
		p := w.partition()
		from := w.Int64N(w.of(p).end() + 2)
		return w.read(p, from, w.of(p))
	case n < 80:
		p := w.partition()
		m := w.of(p)
		before := w.Int64N(m.end() + 2)
		if w.IntN(3) > 0 {
			before = m.start + (m.end()-m.start)/4
		}
		m.trim(before)
		if start, err := w.log.Trim(w.t.Context(), p, before); err != nil || start != m.start {
			return fmt.Errorf("trim %s before %d: start %d (%w), want %d", p, before, start, err, m.start)
		}
	case n < 92:
		return w.positionAt()
	case n < 99:
		w.reopen()
	default:
		topic := 1 + w.Uint64N(2)
		for n := range int32(2) {
			delete(w.parts, commitlog.Partition{Topic: topic, Number: n})
		}
		return w.log.Delete(w.t.Context(), topic)
	}
	return nil
}

func (w *world) append() error {
	w.clock.Advance(time.Duration(w.IntN(5)-1) * time.Millisecond)
	list := make([]commitlog.Append, 1+w.IntN(3))
	for i := range list {
		a := &list[i]
		a.Partition = w.partition()
		count := 1 + w.IntN(4)
		if w.IntN(2) == 0 {
			a.Producer = commitlog.Producer{ID: fmt.Sprint("producer ", w.IntN(2)), Number: w.Int64N(200)}
			count = 1 + int(a.Producer.Number%3) // a repetition has as many
		}
		for range count {
			w.made++
			a.Messages = append(a.Messages, commitlogtest.Message(w.made))
		}
	}
	got, err := w.log.Append(w.t.Context(), list)
	if errors.Is(err, commitlog.ErrProducerNumber) {
		for i := range list {
			a := &list[i]
			m := w.of(a.Partition)
			if _, known := m.numbers[a.Producer.ID][a.Producer.Number]; !known && len(m.numbers[a.Producer.ID]) > 60 {
				return nil // which of those of one append filled it is the contract suite's
			}
		}
		return err
	}
	if err != nil {
		return err
	}
	for i := range list {
		a, m := &list[i], w.of(list[i].Partition)
		if base, known := m.numbers[a.Producer.ID][a.Producer.Number]; known && a.Producer.ID != "" {
			if !got[i].Replayed || got[i].Base != base {
				return fmt.Errorf("repetition is %+v, want base %d", got[i], base)
			}
			continue
		}
		if got[i].Replayed || got[i].Base != m.end() {
			return fmt.Errorf("appended %+v, want base %d", got[i], m.end())
		}
		for _, message := range a.Messages {
			m.stored = append(m.stored, commitlogtest.Stored{Position: m.end(), Time: got[i].Batch.Time, Message: message})
		}
		m.batches = append(m.batches, m.end())
		if a.Producer.ID != "" {
			if a.Producer.Number < m.low[a.Producer.ID] {
				return fmt.Errorf("number %d is older than what is remembered, and was taken", a.Producer.Number)
			}
			m.remember(a.Producer.ID, a.Producer.Number, got[i].Base)
		}
	}
	return nil
}

func (w *world) read(p commitlog.Partition, from int64, m *model) error {
	got, err := w.log.Read(w.t.Context(), p, from, 1+w.IntN(2000))
	switch {
	case from < m.start:
		if !errors.Is(err, commitlog.ErrTrimmed) {
			return fmt.Errorf("read %s from %d, which is trimmed: %w", p, from, err)
		}
		return nil
	case from > m.end():
		if !errors.Is(err, commitlog.ErrBeyondEnd) {
			return fmt.Errorf("read %s from %d, the end is %d: %w", p, from, m.end(), err)
		}
		return nil
	case err != nil || len(got) == 0 && from < m.end():
		return fmt.Errorf("read %s from %d: %d batches, %w", p, from, len(got), err)
	}
	for i, b := range got {
		if i == 0 && (from < b.Base || from >= b.End()) || i > 0 && b.Base != got[i-1].End() {
			return fmt.Errorf("read %s from %d: batch %d begins with %d", p, from, i, b.Base)
		}
		for j := range b.Count() {
			want := m.stored[b.Base+int64(j)]
			message, err := b.Message(j)
			if err != nil || string(message.GetPayload()) != string(want.Message.GetPayload()) || b.Time != want.Time {
				return fmt.Errorf("message at %d is %v (%w), want %v", b.Base+int64(j), message, err, want)
			}
		}
	}
	return nil
}

func (w *world) positionAt() error {
	p := w.partition()
	m := w.of(p)
	at := w.clock.Now().Add(-time.Duration(w.IntN(100)) * time.Millisecond)
	want := m.end()
	for i := m.start; i < m.end(); i++ {
		if m.stored[i].Time >= at.UnixMilli() {
			want = i
			break
		}
	}
	if got, err := w.log.PositionAt(w.t.Context(), p, at); err != nil || got != want {
		return fmt.Errorf("position of %s at %v is %d (%w), want %d", p, at, got, err, want)
	}
	return nil
}

// Random operations leave a log as they leave a list.
func TestLogIsLikeAList(t *testing.T) {
	racetest.SkipSerial(t)
	for seed := range uint64(10) {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 7)), t: t, disk: embeddedtest.NewDisk(nil),
			clock: commitlogtest.NewClock(), parts: map[commitlog.Partition]*model{}}
		w.reopen()
		for step := range 600 {
			if err := w.step(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		for p, m := range w.parts {
			commitlogtest.Reader(t, w.log, p, m.start, m.end(), m.stored[m.start:])
		}
		_, err := commitlog.Inspect(t.Context(), records.Of(w.store), func() {}, func(_ part, where, what string) error {
			return fmt.Errorf("%s: %s", where, what)
		})
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
