package check

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/table"
)

// noRepairs is why an incomplete store is not repaired: rows that depend on missing data
// would look wrong.
const noRepairs = "run check --repair: it builds the store again from what can be read and from the event log"

// files reads all table files of the store, and what its seal says.
func (c *checker) files() error {
	if err := c.Data.Store.Lacks(); err != nil {
		c.noRepair = noRepairs
		if err := c.found(DataMissing, place("SEAL"), err.Error(), "the server does not start either"); err != nil {
			return err
		}
	}
	list, err := c.Data.Raw.Files()
	if err != nil {
		return err
	}
	var total, done int64
	for _, f := range list {
		total += f.Bytes
	}
	began := c.Clock()
	for _, f := range list {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := raw.Verify(f.Path); err != nil {
			c.noRepair = noRepairs
			if err := c.found(FileDamaged, place(f.Path), fmt.Sprintf("it cannot be read as it was written: %.200s", err),
				noRepairs); err != nil {
				return err
			}
		}
		done += f.Bytes
		c.progress.bytes(done, total, began)
	}
	n, err := c.Data.Raw.Strays()
	if err == nil && n > 0 {
		err = c.found(KeyUnknown, place("store"), fmt.Sprintf("%d keys belong to no table", n),
			"a newer version may have written them; they do no harm")
	}
	return err
}

// topicLogs reads the logs of topics.
func (c *checker) topicLogs() error {
	seen, err := commitlog.Inspect(c.ctx, c.Data.TopicLogs, c.progress.row, func(where, what string) error {
		return c.found(TopicWrong, place(where), what, "messages cannot be read there, the others can; "+restoreBackup)
	})
	c.report.Topics, c.report.TopicMessages = seen.Topics, seen.Messages
	return ignoreCorrupt(err)
}

// published are the events in the log.
type published struct {
	seed  maphash.Seed
	ids   []uint64 // hashes, sorted
	since map[kafka.Partition]int64
	place func(topic, key string) kafka.Partition
}

func (p *published) has(id string) bool {
	_, ok := slices.BinarySearch(p.ids, maphash.String(p.seed, id))
	return ok
}

// trimSlack is by how much an event must be younger than the oldest record of a trimmed
// partition before it counts as missing: records are not exactly in order of time.
const trimSlack = 60 * 60 * 1000 // ms

// lacks reports whether an event is missing from the log. Records of aborted transactions
// count as present: their events were sent again.
func (p *published) lacks(e event.Event, id string) bool {
	if p == nil {
		return false
	}
	at := e.GetMetadata().GetEventTime().AsTime().UnixMilli()
	since := p.since[p.place(event.SpecOf(e).Topic, e.GetChatId())]
	return (since == 0 || at >= since+trimSlack) && !p.has(id)
}

// eventLog checks the files of the event log and indexes their events.
func (c *checker) eventLog() error {
	lines, err := c.Data.CheckLog()
	if err != nil {
		return err
	}
	fixed := false
	if len(lines) > 0 && c.Repair && c.noRepair == "" {
		if err := c.Data.RepairLog(); err != nil {
			return err
		}
		if _, err := c.Data.CheckLog(); err != nil {
			return err
		}
		fixed = true
	}
	for _, l := range lines {
		f := Finding{Kind: LogDamaged, Where: "log", What: l,
			Remedy: "--repair, or the next start, mends it and publishes again what the store has", Fixed: fixed}
		if fixed {
			f.Remedy = "repaired"
		}
		c.record(f)
	}
	if len(lines) > 0 && !fixed {
		return nil // missing events follow from the damage
	}
	log := &published{seed: maphash.MakeSeed(), since: map[kafka.Partition]int64{}, place: c.Data.Place}
	for _, t := range c.Data.Topics() {
		for id := range t.Partitions {
			if err := c.partition(log, kafka.Partition{Topic: t.Name, ID: id}); err != nil {
				return err
			}
		}
	}
	slices.Sort(log.ids)
	c.log = log
	return nil
}

func (c *checker) partition(log *published, p kafka.Partition) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	log.since[p] = c.Data.LogSince(p)
	var last backend.Logged
	err := c.Data.Records(p, func(l backend.Logged) {
		if p.Topic != kafka.DeadLetters {
			log.ids = append(log.ids, maphash.String(log.seed, l.ID))
			last = l
		}
	})
	e := last.Event()
	if err != nil || e == nil || c.Data.Store.Dropped(e.GetMetadata().GetGeneration()) {
		return err
	}
	key := table.EventKey(e.GetChatId(), e.GetMetadata().GetVersion())
	it, err := c.st.Get(c.ctx, key, store.Strong)
	if err != nil || it != nil || c.Repair { // a repair puts back all that the log has
		return ignoreCorrupt(err) // the row is looked at with its chat
	}
	c.noRepair = cmp.Or(c.noRepair, noRepairs)
	return c.found(DataMissing, key, fmt.Sprintf("the log has this event (%s), the store does not", p),
		"the server does not start either: put the files back, or run check --repair, which puts back all that the log has")
}

// short is the first few entries of a list.
func short(list []string) string {
	if len(list) <= 3 {
		return fmt.Sprint(list)
	}
	return fmt.Sprintf("%v and %d more", list[:3], len(list)-3)
}
