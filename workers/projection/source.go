package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
)

// chats are all chats of the store, by their heads. A chat that is made while a rebuild goes
// through them may be missed: its records come while there is a next build.
type chats struct {
	*Set
	p *projection
}

const (
	planChats = 1_000 // heads that are read at a time to count events
	pageChats = 50    // chats between two positions where a rebuild can continue
)

// plan implements source. The version of a chat's head is how many events it has.
func (c *chats) plan(ctx context.Context) (total int64, after string, err error) {
	for row, err := range store.ScanAll(ctx, c.cfg.Store, store.Scan{Table: store.ChatCounters, Segments: 1,
		Limit: planChats}) {
		if err != nil {
			return 0, "", fmt.Errorf("count events: %w", err)
		}
		total += table.HeadFrom(row.Key.PK, row.Item).Version
	}
	return total, "", nil
}

// next implements source.
func (c *chats) next(ctx context.Context, build int64, after string) (part, error) {
	scan := store.Scan{Table: store.ChatCounters, Segments: 1, Limit: pageChats, Cursor: after}
	page, err := c.cfg.Store.Scan(ctx, scan)
	if errors.Is(err, store.ErrInvalid) && after != "" {
		// A position that the store refuses must not end the rebuild for ever. Chats that are
		// folded already are skipped.
		scan.Cursor = ""
		page, err = c.cfg.Store.Scan(ctx, scan)
	}
	if err != nil {
		return part{}, fmt.Errorf("read chats: %w", err)
	}
	out := part{after: page.Cursor, again: scan.Cursor != after}
	var failed error
	var mu sync.Mutex
	var all sync.WaitGroup
	var next atomic.Int64
	for range min(c.cfg.Parallel, len(page.Rows)) {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(page.Rows) {
					return
				}
				err := c.chat(ctx, build, page.Rows[i].Key.PK)
				if errors.Is(err, errStuck) {
					c.cfg.Logger.Error("projection: a chat ends before an event that cannot be read", "projection", c.p.Name,
						"chat_id", page.Rows[i].Key.PK, "error", err)
					c.p.stuck.Add(1)
					mu.Lock()
					out.gaps = append(out.gaps, page.Rows[i].Key.PK)
					mu.Unlock()
				} else if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
			}
		})
	}
	all.Wait()
	if failed == nil {
		failed = ctx.Err()
	}
	for _, row := range page.Rows {
		out.done += table.HeadFrom(row.Key.PK, row.Item).Version
	}
	slices.Sort(out.gaps)
	return out, failed
}

// chat folds all events of a chat.
func (c *chats) chat(ctx context.Context, build int64, id string) error {
	from, err := c.position(ctx, c.p, table.ProjectionPartition(c.p.Name, build, id))
	if err != nil {
		return err
	}
	return c.fold(ctx, c.p, build, id, from, &c.p.rebuilt, true)
}

// records are the records of a topic.
type records struct {
	*Set
	p *projection
}

// pageRecords is how many offsets are read at a time.
const pageRecords = 2_000

// plan implements source. Records that come later go into the next build as they come.
func (s *records) plan(ctx context.Context) (total int64, after string, err error) {
	spans, err := lag.Spans(ctx, s.cfg.Addr, s.p.Source, s.cfg.Kafka...)
	if err != nil {
		return 0, "", err
	}
	for _, span := range spans {
		total += max(span.To-span.From, 0)
	}
	return total, formatSpans(spans), nil
}

// next implements source.
func (s *records) next(ctx context.Context, build int64, after string) (part, error) {
	spans, err := parseSpans(s.p.Source, after)
	if err != nil || len(spans) == 0 {
		return part{}, err
	}
	now := spans[0]
	now.To = min(now.To, now.From+pageRecords)
	var list []*kafka.Record
	err = lag.Read(ctx, s.cfg.Addr, []lag.Span{now}, func(r *kafka.Record) error {
		list = append(list, r)
		return nil
	}, s.cfg.Kafka...)
	if err != nil {
		return part{}, fmt.Errorf("read %s: %w", s.p.Source, err)
	}
	out := part{done: now.To - now.From}
	for len(list) > 0 {
		turn, err := s.turn(ctx, pageRecords)
		if err != nil {
			return part{}, err
		}
		began := s.cfg.Clock()
		n, err := s.write(ctx, s.p, []int64{build}, list[:min(turn, len(list))], &s.p.rebuilt)
		if err != nil && passes(err) {
			return part{}, err
		}
		if err != nil {
			s.gap(&out, list[n], err)
			n++
		}
		list = list[n:]
		if err := s.rest(ctx, began, turn, n); err != nil {
			return part{}, err
		}
	}
	spans[0].From = now.To
	out.after = formatSpans(spans)
	return out, nil
}

// gap records that a record could not be brought into the build. One that is ignored makes no gap:
// it has no rows in a live build either.
func (s *records) gap(out *part, r *kafka.Record, err error) {
	if consume.ClassOf(err) == consume.Ignored {
		return
	}
	name := fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)
	s.cfg.Logger.Error("projection: a record cannot be brought into a build", "projection", s.p.Name, "record", name,
		"error", err)
	s.p.stuck.Add(1)
	out.gaps = append(out.gaps, name)
}

// formatSpans writes what is left of spans: partition/from/to with spaces between them.
func formatSpans(spans []lag.Span) string {
	var list []string
	for _, s := range spans {
		if s.From < s.To {
			list = append(list, fmt.Sprintf("%d/%d/%d", s.Partition.ID, s.From, s.To))
		}
	}
	return strings.Join(list, " ")
}

func parseSpans(topic, text string) (spans []lag.Span, err error) {
	for word := range strings.FieldsSeq(text) {
		numbers := strings.Split(word, "/")
		if len(numbers) != 3 {
			return nil, fmt.Errorf("projection: %.40q is no place in a topic", word)
		}
		var n [3]int64
		for i, s := range numbers {
			if n[i], err = strconv.ParseInt(s, 10, 64); err != nil {
				return nil, fmt.Errorf("projection: %.40q is no place in a topic: %w", word, err)
			}
		}
		spans = append(spans, lag.Span{Partition: kafka.Partition{Topic: topic, ID: int32(n[0])}, From: n[1], To: n[2]})
	}
	return spans, nil
}
