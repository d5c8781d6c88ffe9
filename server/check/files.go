package check

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/embedded/raw"
)

// noRepairs is why an incomplete store is not repaired: rows that depend on missing data
// would look wrong.
const noRepairs = "run check --repair: it builds the store again from what can be read, with --from BACKUP also from a backup"

// files reads all table files of the store, and what its seal says.
func (c *checker) files() error {
	if err := c.Data.Store.Lacks(); err != nil {
		c.noRepair = noRepairs
		if err := c.found(DataMissing, location("SEAL"), err.Error(), "the server does not start either"); err != nil {
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
			if err := c.found(FileDamaged, location(f.Path), fmt.Sprintf("it cannot be read as it was written: %.200s", err),
				noRepairs); err != nil {
				return err
			}
		}
		done += f.Bytes
		c.progress.bytes(done, total, began)
	}
	n, err := c.Data.Raw.Strays()
	if err == nil && n > 0 {
		err = c.found(KeyUnknown, location("store"), fmt.Sprintf("%d keys belong to no table", n),
			"a newer version may have written them; they do no harm")
	}
	return err
}

// logs reads the logs of topics, and the event log.
func (c *checker) logs() error {
	seen, err := commitlog.Inspect(c.ctx, c.Data.Records, c.progress.row,
		func(p commitlog.Partition, where, what string) error {
			if p.OfEventLog() {
				return c.found(LogDamaged, location(where), what,
					"readers continue behind it; --repair publishes again what the store has of its events")
			}
			return c.found(TopicWrong, location(where), what, "messages cannot be read there, the others can; "+restoreBackup)
		})
	c.report.Topics, c.report.TopicMessages = seen.Topics, seen.Messages
	return ignoreCorrupt(err)
}

// published are the events in the log.
type published struct {
	seed        maphash.Seed
	found       []uint64 // hashes of their names, sorted
	since       map[kafka.Partition]int64
	partitionOf func(topic, key string) kafka.Partition
}

// nameOf names an event, as references do.
func nameOf(chat string, version int64) string { return chat + "/" + strconv.FormatInt(version, 10) }

func (p *published) add(name string) { p.found = append(p.found, maphash.String(p.seed, name)) }

func (p *published) has(name string) bool {
	_, ok := slices.BinarySearch(p.found, maphash.String(p.seed, name))
	return ok
}

// trimSlack is by how much an event must be younger than the oldest record of a trimmed
// partition before it counts as missing: records are not exactly in order of time.
const trimSlack = 60 * 60 * 1000 // ms

// lacks reports whether an event is missing from the log.
func (p *published) lacks(e event.Event, id string) bool {
	if p == nil {
		return false
	}
	md := e.GetMetadata()
	since := p.since[p.partitionOf(event.SpecOf(e).Topic, e.GetChatId())]
	return (since == 0 || md.GetEventTime().AsTime().UnixMilli() >= since+trimSlack) &&
		!p.has(nameOf(e.GetChatId(), md.GetVersion())) && !p.has(id)
}

// eventLog finds out which events are in the log.
func (c *checker) eventLog() error {
	moved, err := c.Data.LogMoved(c.ctx)
	if err != nil {
		return err
	}
	if !moved {
		fmt.Fprintln(c.Out, "the event log was not checked: it is that of an earlier release, and the next start moves it")
		return nil
	}
	list, err := c.Data.Published(c.ctx)
	if err != nil {
		return ignoreCorrupt(err) // logs names what is wrong
	}
	log := &published{seed: maphash.MakeSeed(), since: map[kafka.Partition]int64{}, partitionOf: c.Data.PartitionOf}
	for _, p := range list {
		log.since[p.Partition] = p.Since
		err := c.Data.Events(c.ctx, p, func(chat string, version int64, id string) {
			if chat != "" {
				id = nameOf(chat, version)
			}
			log.add(id)
		})
		if err != nil {
			return err
		}
	}
	slices.Sort(log.found)
	c.log = log
	return nil
}

// short is the first few entries of a list.
func short(list []string) string {
	if len(list) <= 3 {
		return fmt.Sprint(list)
	}
	return fmt.Sprintf("%v and %d more", list[:3], len(list)-3)
}
