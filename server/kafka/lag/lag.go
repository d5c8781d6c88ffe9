package lag

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

const (
	// closeBehind is the distance up to which the records between two offsets are counted.
	// Each transaction ends with a marker, which takes an offset and is no record: a reader
	// that has read everything is one behind by offsets.
	closeBehind = 200
	countTime   = 5 * time.Second
)

// records replaces the distances of partitions that are close to their end by the number of
// records. A partition that cannot be counted in time keeps its distance. So do records of
// open transactions, which no consumer can read yet.
func (g *Group) records(ctx context.Context, addr string, options []kafka.Option) error {
	spans := map[kafka.Partition]Span{}
	topics := map[string]bool{}
	for _, p := range g.Partitions {
		if p.Lag > 0 && p.Lag <= closeBehind {
			spans[p.Partition] = Span{p.Partition, p.From, p.End}
			topics[p.Partition.Topic] = true
		}
	}
	if len(spans) == 0 {
		return nil
	}
	at := map[string]map[int32]kgo.Offset{}
	for p, s := range spans {
		if at[p.Topic] == nil {
			at[p.Topic] = map[int32]kgo.Offset{}
		}
		at[p.Topic][p.ID] = kgo.NewOffset().At(s.From)
	}
	c, err := open(addr, options, kgo.ConsumePartitions(at), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.FetchMaxBytes(fetchMaxBytes), kgo.MaxConcurrentFetches(1))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	names := make([]string, 0, len(topics))
	for name := range topics {
		names = append(names, name)
	}
	stable, err := kadm.NewClient(c).ListCommittedOffsets(ctx, names...)
	if err != nil {
		return nil // the distances stay
	}
	found := map[kafka.Partition]int64{}
	for p, s := range spans {
		// Beyond the last stable offset are open transactions.
		if o, ok := stable.Lookup(p.Topic, p.ID); ok && o.Err == nil && o.Offset < s.To {
			found[p] = s.To - max(o.Offset, s.From)
			s.To = o.Offset
			spans[p] = s
		}
	}
	done := count(ctx, c, spans, found)
	for i := range g.Partitions {
		p := &g.Partitions[i]
		if n := found[p.Partition]; done[p.Partition] {
			g.Lag -= p.Lag - n
			p.Lag = n
		}
	}
	return nil
}

// count adds the records of spans to found, and returns the partitions whose spans it
// has read to their ends.
func count(
	ctx context.Context, c *kgo.Client, spans map[kafka.Partition]Span, found map[kafka.Partition]int64,
) map[kafka.Partition]bool {
	done, over := map[kafka.Partition]bool{}, map[kafka.Partition]bool{}
	finish := func(p kafka.Partition, whole bool) {
		done[p], over[p] = whole, true
		c.PauseFetchPartitions(map[string][]int32{p.Topic: {p.ID}})
	}
	for p, s := range spans {
		if s.From >= s.To {
			finish(p, true)
		}
	}
	for len(over) < len(spans) && ctx.Err() == nil {
		fetches := c.PollRecords(ctx, maxPoll)
		if fetches.IsClientClosed() {
			break
		}
		for _, e := range fetches.Errors() { // it may not be read, or is not there any more
			if p := (kafka.Partition{Topic: e.Topic, ID: e.Partition}); !over[p] && ctx.Err() == nil {
				finish(p, false)
			}
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			p := kafka.Partition{Topic: r.Topic, ID: r.Partition}
			s, ok := spans[p]
			if !ok || over[p] {
				continue
			}
			if r.Offset < s.To && !r.Attrs.IsControl() {
				found[p]++
			}
			if r.Offset >= s.To-1 {
				finish(p, true)
			}
		}
	}
	return done
}
