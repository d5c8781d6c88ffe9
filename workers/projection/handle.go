package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
)

// Handle brings records of one key into the projections that follow their topic. It is a
// consume.BatchHandler. Records that it has not finished may be in the projections
// nonetheless, and do no harm when they come again.
func (s *Set) Handle(ctx context.Context, records []*kafka.Record) (finished int, err error) {
	topic, _, _ := versions.Base(records[0].Topic)
	finished = len(records)
	for _, p := range s.known {
		if !slices.Contains(p.Topics, topic) {
			continue
		}
		bring := s.show
		if p.folds() {
			bring = s.follow
		}
		if n, failure := bring(ctx, p, records); n < finished {
			finished, err = n, failure
		}
	}
	return finished, err
}

// Aggregate is Handle as a consume.AggregateHandler: once an event of a chat cannot be folded,
// the chat's later records are parked. The effect is committed when it returns: a chat may be
// behind by more than one plan holds, and in two builds.
func (s *Set) Aggregate(ctx context.Context, records []*kafka.Record) (consume.Effect, error) {
	finished, err := s.Handle(ctx, records)
	return consume.Effect{Finished: finished}, err
}

// follow folds the chat of records. They only name it: their events, and maybe later ones, are
// read from the store.
func (s *Set) follow(ctx context.Context, p *projection, records []*kafka.Record) (finished int, failure error) {
	chat := string(records[0].Key)
	if err := table.FoldedKey(p.Table, table.ProjectionPartition(p.Name, math.MaxInt64, chat)).Validate(); err != nil ||
		chat == "" {
		return 0, consume.Fail(consume.Ignored, "the record's key names no chat", err)
	}
	targets, err := s.targets(ctx, p, chat)
	if err != nil {
		return 0, classified(err)
	}
	for i, t := range targets {
		err := s.fold(ctx, p, t.build, chat, t.position, &p.folded, false)
		if errors.Is(err, errStuck) {
			p.stuck.Add(1)
			if i < len(targets)-1 {
				// The next build stops before an event that the live one may be past. The live one
				// continues, and the chat is a gap of the rebuild, which does not become live with it.
				continue
			}
		}
		if err != nil {
			return 0, classified(err)
		}
	}
	// Where another has folded the chat, its plan may not be on the disk yet.
	if err := s.cfg.Store.Durable(ctx); err != nil {
		return 0, classified(err)
	}
	return len(records), nil
}

// classified is the failure of a record whose effect could not be written.
func classified(err error) error {
	switch {
	case errors.Is(err, errStuck):
		return consume.Fail(consume.Permanent, "an event of the chat cannot be read in the event store", err)
	case errors.Is(err, errNewer):
		return consume.Fail(consume.Authoritative, "the projection is of a newer version of this program", err)
	}
	return consume.Fail(consume.Authoritative, "the projection cannot be written", err)
}

// passes reports whether a failure is about the store or Kafka, and not about the record.
func passes(err error) bool {
	var f *consume.Failure
	return errors.As(err, &f) && f.Class == consume.Authoritative
}

// target is a build that a chat is to be folded into.
type target struct{ build, position int64 }

// errNewer says that this process must not consume: its code is older than a build.
var errNewer = errors.New("projection: a build is of a newer version")

// maxLooks bounds how often the builds may change under one call.
const maxLooks = 5

// targets returns the builds that a chat is to be folded into, the next one first, so that
// it is never behind the live one. It reads which builds there are now, and the positions,
// in one call of the store.
func (s *Set) targets(ctx context.Context, p *projection, chat string) ([]target, error) {
	for range maxLooks {
		known := p.builds.Load()
		builds := p.own(known)
		keys := []store.Key{table.ProjectionKey(p.Name)}
		for _, b := range builds {
			keys = append(keys, table.FoldedKey(p.Table, table.ProjectionPartition(p.Name, b, chat)))
		}
		items, err := s.cfg.Store.BatchGet(ctx, keys, store.Strong)
		if err != nil {
			return nil, fmt.Errorf("read the builds of %s: %w", p.Name, err)
		}
		now := table.ProjectionFrom(items[0])
		if err := p.mayConsume(&now); err != nil {
			return nil, err
		}
		if now.Revision != known.Revision || now.Last != known.Last {
			p.builds.Store(&now)
			if !slices.Equal(p.own(&now), builds) {
				continue
			}
		}
		targets := make([]target, len(builds))
		for i, b := range builds {
			targets[i] = target{b, table.FoldedFrom(items[i+1]).Version}
		}
		return targets, nil
	}
	return nil, fmt.Errorf("%w: its builds keep changing", errBusy)
}

// own lists the builds that this version of the code makes, the next one first.
func (d *Definition) own(b *table.Projection) (list []int64) {
	if b.Next != 0 && b.NextVersion == d.Version {
		list = append(list, b.Next)
	}
	if b.Live != 0 && b.LiveVersion == d.Version {
		list = append(list, b.Live)
	}
	return list
}

// mayConsume returns why a process must not take records: they would be missing in a build.
func (d *Definition) mayConsume(b *table.Projection) error {
	switch {
	case b.NextVersion > d.Version || b.LiveVersion > d.Version:
		return errNewer
	case len(d.own(b)) == 0:
		return fmt.Errorf("%w: there is no build of this version yet", errBusy)
	case b.Next != 0 && b.NextVersion != d.Version:
		return fmt.Errorf("%w: the next build is of another version", errBusy)
	}
	return nil
}

// show writes the rows of records.
func (s *Set) show(ctx context.Context, p *projection, records []*kafka.Record) (finished int, failure error) {
	it, err := s.cfg.Store.Get(ctx, table.ProjectionKey(p.Name), store.Strong)
	if err != nil {
		return 0, classified(err)
	}
	builds := table.ProjectionFrom(it)
	if err := p.mayConsume(&builds); err != nil {
		return 0, classified(err)
	}
	return s.write(ctx, p, p.own(&builds), records, &p.folded)
}

// write writes the rows of records into builds, those of a record in one plan. It returns how
// many records it has finished.
func (s *Set) write(
	ctx context.Context, p *projection, builds []int64, records []*kafka.Record, count *atomic.Int64,
) (finished int, failure error) {
	plan, taken := map[store.Key]store.Item{}, 0
	flush := func() error {
		if err := s.put(ctx, plan); err != nil {
			return classified(err)
		}
		clear(plan)
		count.Add(int64(taken - finished))
		finished = taken
		return nil
	}
	for _, r := range records {
		rows, err := p.Rows(ctx, r, s.cfg.Decode)
		if err != nil {
			failure = err
			break
		}
		if len(plan)+len(rows)*len(builds) > store.MaxPlanWrites {
			if err := flush(); err != nil {
				return finished, err
			}
		}
		for _, b := range builds {
			for _, row := range rows {
				key := store.Key{Table: p.Table, PK: table.ProjectionPartition(p.Name, b, row.Aggregate), SK: row.SK}
				plan[key] = row.Item
			}
		}
		taken++
	}
	if err := flush(); err != nil {
		return finished, err
	}
	return finished, failure
}

func compareKeys(a, b store.Key) int {
	return cmp.Or(cmp.Compare(a.PK, b.PK), cmp.Compare(a.SK, b.SK))
}

// put writes rows in one plan. If the outcome of the plan is unknown, the rows are written
// again: they are the same.
func (s *Set) put(ctx context.Context, rows map[store.Key]store.Item) (err error) {
	if len(rows) == 0 {
		return nil
	}
	var plan store.Plan
	for _, key := range slices.SortedFunc(maps.Keys(rows), compareKeys) {
		plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: key, Item: rows[key], Name: "row"})
	}
	for range maxTries {
		err = s.cfg.Store.Transact(ctx, plan)
		if !errors.Is(err, store.ErrAmbiguous) && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}
