package consume

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// crashLog is the crash log of a group, for one of its processes: it finds out which record crashed one.
//
// The owner of a partition keeps a row in the store, from the first record until it
// releases the partition. A consumer that finds the row of another one quarantines the
// records that may have been in work: those from the committed offset on, at most as many
// as one round has, that existed when the partition was claimed. Quarantined records are
// worked on one by one, with nothing else in work in the process, and each is recorded as
// the suspect in the row first. If the row of a crashed owner has a suspect, that record
// was alone when the process ended, and only that counts as its crash. So a record that
// crashes the process costs the run that first met it, and one run more for each crash that
// the caller allows. A process that is killed from outside costs a record nothing, unless
// kills hit the same suspect as often.
//
// Without a crash this costs one write for the first records of a partition, and one when
// the partition is released. Many goroutines may use a crashLog, and one a quarantine.
type crashLog struct {
	Store    store.Store
	Clock    func() time.Time
	Logger   *slog.Logger
	Group    string
	Consumer string // id of the process
}

// crashClaim names a partition whose first records have come.
type crashClaim struct {
	Partition kafka.Partition
	First     int64 // offset of the first of them
	End       int64 // offset at which the partition ended then
}

// maxClaims is the number of claims in one call: each needs up to two writes.
const maxClaims = store.MaxPlanWrites / 2

// Claim records the ownership of at most maxClaims partitions. It returns the quarantines of
// those whose previous owner, another process, ended without a release, nil for the others.
func (l *crashLog) Claim(ctx context.Context, claims []crashClaim) ([]*quarantine, error) {
	keys := make([]store.Key, len(claims))
	for i, c := range claims {
		keys[i] = table.OwnershipKey(l.key(c.Partition))
	}
	rows, err := l.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, err
	}
	own := table.Ownership{Consumer: l.Consumer, Since: l.Clock().UnixMilli()}.Item()
	var writes []store.Write
	list := make([]*quarantine, len(claims))
	crashed := 0
	for i, c := range claims {
		writes = append(writes, store.Write{Op: store.OpPut, Key: keys[i], Item: own})
		if rows[i] == nil {
			continue
		}
		previous := table.OwnershipFrom(rows[i])
		if previous.Consumer == l.Consumer { // this process lost the partition, as when all brokers are away, and did not end
			continue
		}
		crashed++
		q := &quarantine{left: kafka.MaxPoll, seen: c.First - 1, end: c.End}
		if q.crashes, err = l.counts(ctx, c.Partition, c.First); err != nil {
			return nil, err
		}
		list[i] = q
		if offset := previous.Alone - 1; offset >= c.First {
			l.Logger.Warn("consume: the previous owner of a partition crashed on a record", "group", l.Group, "topic",
				c.Partition.Topic, "partition", c.Partition.ID, "owner", previous.Consumer, "record", offset)
			q.crashes[offset]++
			writes = append(writes, l.increment(c.Partition, offset, table.AttrEnds))
		}
	}
	if err := l.Store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		return nil, err
	}
	if crashed > 0 { // one line, since every kill comes here
		l.Logger.Info("consume: the previous owner of partitions ended without releasing them", "group", l.Group,
			"partitions", crashed)
	}
	return list, nil
}

// counts reads the crash counts of the records of a partition, from an offset on.
func (l *crashLog) counts(ctx context.Context, p kafka.Partition, from int64) (map[int64]int64, error) {
	counts := map[int64]int64{}
	q := store.Query{
		Table: store.ConsumerAttempts, PK: l.key(p), From: table.Number(from), To: table.Number(1<<63 - 1),
		Consistency: store.Strong,
	}
	for row, err := range store.QueryAll(ctx, l.Store, q) {
		if err != nil {
			return nil, err
		}
		a, err := table.AttemptsFrom(row)
		if err != nil {
			return nil, err
		}
		if a.Ends > 0 {
			counts[a.Offset] = a.Ends
		}
	}
	return counts, nil
}

// RecordSuspect records which record of a partition is worked on alone.
func (l *crashLog) RecordSuspect(ctx context.Context, p kafka.Partition, offset int64) error {
	return l.updateOwnership(ctx, p,
		store.Update{Set: []store.Attr{{Name: table.AttrAlone, Value: store.Int(offset + 1)}}})
}

// ClearSuspect records that no record of a partition is worked on alone.
func (l *crashLog) ClearSuspect(ctx context.Context, p kafka.Partition) error {
	return l.updateOwnership(ctx, p, store.Update{Remove: []string{table.AttrAlone}})
}

func (l *crashLog) updateOwnership(ctx context.Context, p kafka.Partition, up store.Update) error {
	return l.Store.Transact(ctx, store.Plan{
		Writes: []store.Write{{Op: store.OpUpdate, Key: table.OwnershipKey(l.key(p)), Update: up}}})
}

// releaseTimeout bounds the writes at the end of an ownership. A row that stays costs the
// next owner some time, and no record anything.
const releaseTimeout = 5 * time.Second

// Release records that nothing of some partitions is in work any more. It has no context:
// rebalances call it, and it bounds its own time.
func (l *crashLog) Release(parts []kafka.Partition) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	for chunk := range slices.Chunk(parts, store.MaxBatchWrite) {
		writes := make([]store.Write, len(chunk))
		for i, p := range chunk {
			writes[i] = store.Write{Op: store.OpDelete, Key: table.OwnershipKey(l.key(p))}
		}
		if err := l.Store.BatchWrite(ctx, writes); err != nil {
			l.Logger.Warn("consume: partitions cannot be released", "group", l.Group, "error", err)
			return
		}
	}
}

// quarantine is the part of a partition in which the previous owner crashed.
type quarantine struct {
	left    int             // records that may still be suspects
	seen    int64           // last offset that was subtracted from left
	end     int64           // offset of the first record that came after the crash
	crashes map[int64]int64 // crash counts, by offset
}

// Suspect reports whether a record must be worked on alone. Records come in order of their
// offsets; some come again.
func (q *quarantine) Suspect(offset int64) bool {
	if offset >= q.end {
		return false
	}
	if offset > q.seen {
		if q.left == 0 {
			return false
		}
		q.left--
		q.seen = offset
	}
	return true
}

// Crashes is how often the record at an offset has crashed a process.
func (q *quarantine) Crashes(offset int64) int { return int(q.crashes[offset]) }

// keepAttempts is how long a count is kept.
const keepAttempts = 7 * 24 * time.Hour

// key is the partition key of the counts of a partition.
func (l *crashLog) key(p kafka.Partition) string {
	return table.AttemptsPartition(l.Group, p.Topic, p.ID)
}

// CountAttempt adds an attempt at a record, durably, and returns their number.
func (l *crashLog) CountAttempt(ctx context.Context, r *kafka.Record) (int, error) {
	w := l.increment(kafka.Partition{Topic: r.Topic, ID: r.Partition}, r.Offset, table.AttrAttempts)
	if err := l.Store.Transact(ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
		return 0, err
	}
	it, err := l.Store.Get(ctx, w.Key, store.Strong)
	return int(it.Get(table.AttrAttempts).Int64()), err
}

func (l *crashLog) increment(p kafka.Partition, offset int64, attr string) store.Write {
	return store.Write{
		Op: store.OpUpdate, Key: table.AttemptsKey(l.key(p), offset),
		Update: store.Update{
			Set: []store.Attr{{Name: store.ExpiresAtField, Value: store.Int(l.Clock().Add(keepAttempts).Unix())}},
			Add: []store.Increment{{Name: attr, N: 1}},
		},
	}
}
