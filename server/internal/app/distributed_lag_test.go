//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/fanout"
)

// lagProbe asks the engines, not Parley, how far the durable path is behind: which rows
// are in the outbox, and what of Kafka fanout has not finished.
//
// While people write there is always something on its way, so that "no lag" is said of a
// moment: it is over when all that was committed before the moment has left the outbox,
// was read by a plain reader of Kafka, finished by fanout's group and shown on all streams.
type lagProbe struct {
	t      testing.TB
	eng    *backend.Backend
	reader *kgo.Client
	admin  *kadm.Client

	mu   sync.Mutex
	seen map[kafka.Partition]int64 // last offset read, ends of transactions included
	data map[kafka.Partition]int64 // last offset of a record
}

// newLagProbe begins to read.
func newLagProbe(ctx context.Context, in *installation) *lagProbe {
	in.t.Helper()
	p := &lagProbe{t: in.t, seen: map[kafka.Partition]int64{}, data: map[kafka.Partition]int64{}}
	var err error
	if p.eng, err = backend.Open(backend.Config{
		Distributed: &backend.Distributed{Tables: backend.Tables{Prefix: in.rows, Endpoint: in.store}}}); err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(func() { _ = p.eng.Close() })
	p.reader, err = kgo.NewClient(
		kgo.SeedBrokers(strings.Split(in.kafka, ",")...), kgo.ConsumeTopics(kafka.ReadBy(fanout.Group)...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(250*time.Millisecond),
	)
	if err != nil {
		in.t.Fatal(err)
	}
	p.admin = kadm.NewClient(p.reader)
	reading, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { p.read(reading) })
	in.t.Cleanup(func() { stop(); done.Wait(); p.reader.Close() })
	return p
}

func (p *lagProbe) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := p.reader.PollFetches(ctx)
		p.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			part := kafka.Partition{Topic: r.Topic, ID: r.Partition}
			p.seen[part] = r.Offset
			if !r.Attrs.IsControl() {
				p.data[part] = r.Offset
			}
		})
		p.mu.Unlock()
	}
}

// outbox returns the keys of the rows that wait.
func (p *lagProbe) outbox(ctx context.Context) (map[store.Key]bool, error) {
	rows := map[store.Key]bool{}
	s := store.Scan{Table: store.Outbox, Segments: 1}
	for first := true; first || s.Cursor != ""; first = false {
		page, err := p.eng.Store.Scan(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Rows {
			rows[r.Key] = true
		}
		s.Cursor = page.Cursor
	}
	return rows, nil
}

// ends returns, of each partition with records, the offset after the last one that is
// committed now.
func (p *lagProbe) ends(ctx context.Context) (map[kafka.Partition]int64, error) {
	listed, err := p.admin.ListCommittedOffsets(ctx, kafka.ReadBy(fanout.Group)...)
	if err != nil {
		return nil, err
	}
	if err := listed.Error(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ends := map[kafka.Partition]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		part := kafka.Partition{Topic: o.Topic, ID: o.Partition}
		if last, ok := p.seen[part]; o.Offset > 0 && (!ok || last < o.Offset-1) {
			err = fmt.Errorf("the reader is at %d of %d of %v", last+1, o.Offset, part)
		}
		if last, ok := p.data[part]; ok {
			ends[part] = last + 1
		}
	})
	return ends, err
}

// unfinished counts the records before ends that fanout has not finished. A group commits
// after a record, so that the end of its transaction is no lag.
func (p *lagProbe) unfinished(ctx context.Context, ends map[kafka.Partition]int64) (n int64, err error) {
	done, err := p.admin.FetchOffsets(ctx, fanout.Group)
	if err != nil {
		return 0, err
	}
	if err := done.Error(); err != nil {
		return 0, err
	}
	for part, end := range ends {
		o, _ := done.Lookup(part.Topic, part.ID)
		n += max(0, end-max(0, o.At))
	}
	return n, nil
}

// delay is how long it took until what was committed at a moment had left the outbox, was
// finished by fanout, and was shown, each after the other.
type delay struct{ outbox, group, all time.Duration }

func (l delay) String() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("%v (outbox %v, group %v)", ms(l.all), ms(l.outbox), ms(l.group))
}

// drain waits until what was committed before the call is through. shown waits for the
// streams.
func (p *lagProbe) drain(ctx context.Context, shown func(context.Context) error) (l delay, _ error) {
	begun := time.Now()
	step := "the outbox cannot be read"
	// An engine that is coming back may answer with an error; the last one is reported.
	var last error
	until := func(ok func() (bool, error)) error {
		for {
			done, err := ok()
			if done {
				return nil
			}
			if err != nil {
				last = err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("after %v: %s (%w)", time.Since(begun).Round(time.Millisecond), step, last)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	var rows map[store.Key]bool
	if err := until(func() (ok bool, err error) { rows, err = p.outbox(ctx); return err == nil, err }); err != nil {
		return l, err
	}
	err := until(func() (bool, error) {
		now, err := p.outbox(ctx)
		if err != nil {
			return false, err
		}
		for k := range rows {
			if !now[k] {
				delete(rows, k)
			}
		}
		step = fmt.Sprintf("%d rows wait in the outbox", len(rows))
		return len(rows) == 0, nil
	})
	if err != nil {
		return l, err
	}
	l.outbox = time.Since(begun)
	var ends map[kafka.Partition]int64
	step = "what is on Kafka cannot be read"
	if err := until(func() (ok bool, err error) { ends, err = p.ends(ctx); return err == nil, err }); err != nil {
		return l, err
	}
	err = until(func() (bool, error) {
		n, err := p.unfinished(ctx, ends)
		if err == nil {
			step = fmt.Sprintf("fanout is %d records behind", n)
		}
		return err == nil && n == 0, err
	})
	if err != nil {
		return l, err
	}
	l.group = time.Since(begun)
	if err := shown(ctx); err != nil {
		return l, fmt.Errorf("streams are behind: %w", err)
	}
	l.all = time.Since(begun)
	return l, nil
}
