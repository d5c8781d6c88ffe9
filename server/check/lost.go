package check

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The event log has the events of chats, too: what the store lost is put back from there. Not all that
// the log has is part of a chat's history: after a loss that was accepted the chat went on with other
// events of the same versions, and those that were lost are in the log still. The newest event of a chat
// is of the line of history that counts, and so are all events up to its version; of two with the same
// version, the later one.

// line is how far the line of history of a chat goes that counts.
type line struct {
	generation string // of the newest event
	at         int64  // its time, unix ms
	version    int64  // the highest of that generation, and of the store

	restored    int64 // events
	first, last int64 // versions of those
}

// add counts an event that the store or the log has.
func (l *line) add(e event.Event) {
	md := e.GetMetadata()
	at := md.GetEventTime().AsTime().UnixMilli()
	switch {
	case md.GetGeneration() == l.generation:
		l.version = max(l.version, md.GetVersion())
	case at > l.at || l.generation == "":
		l.generation, l.version = md.GetGeneration(), md.GetVersion()
	}
	l.at = max(l.at, at)
}

// lostEvents puts events back into the store that only the log has. A check without repair finds
// them as gaps of their chats.
func (c *checker) lostEvents() error {
	if !c.Repair || c.noRepair != "" {
		return nil
	}
	lines := map[string]*line{}
	err := c.copies(func(e event.Event, _ backend.Logged, _ bool) error {
		l := lines[e.GetChatId()]
		if l == nil {
			l = &line{}
			if err := c.stored(e.GetChatId(), l); err != nil {
				return err
			}
			lines[e.GetChatId()] = l
		}
		l.add(e)
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.restoreEvents(lines); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(lines)) {
		if l := lines[id]; l.restored > 0 {
			c.record(Finding{Kind: EventWrong, Where: table.EventKey(id, l.first).String(), Fixed: true, Remedy: "repaired",
				What: fmt.Sprintf("%d events of the chat, from version %d to %d, were missing, and %s had them", l.restored, l.first,
					l.last, c.copyNames())})
		}
	}
	return nil
}

// stored counts the last event of a chat that the store has.
func (c *checker) stored(id string, l *line) error {
	q := store.Query{Table: store.Events, PK: id, Descending: true, Limit: 1, Consistency: store.Strong}
	page, err := c.st.Query(c.ctx, q)
	if err != nil || len(page.Rows) == 0 {
		return ignoreCorrupt(err)
	}
	if e, _, bad := decode(page.Rows[0], nil); bad == nil {
		l.add(e)
	}
	return nil
}

// restoreEvents writes what the store lacks of the lines.
func (c *checker) restoreEvents(lines map[string]*line) error {
	var writes []store.Write
	ours := map[store.Key]bool{}
	flush := func() error {
		err := c.write(EventWrong, writes)
		writes = nil
		return err
	}
	err := c.copies(func(e event.Event, l backend.Logged, older bool) error {
		at, version := lines[e.GetChatId()], e.GetMetadata().GetVersion()
		key := table.EventKey(e.GetChatId(), version)
		if version > at.version || older && ours[key] {
			return nil
		}
		if !ours[key] {
			it, err := c.st.Get(c.ctx, key, store.Strong)
			if ignoreCorrupt(err) != nil || it != nil && !isPlaceholder(store.Row{Key: key, Item: it}, l.ID) {
				return err
			}
			at.restored++
			at.first, at.last = min(cmp.Or(at.first, version), version), max(at.last, version)
		} else if slices.ContainsFunc(writes, func(w store.Write) bool { return w.Key == key }) {
			if err := flush(); err != nil { // a plan writes a row once
				return err
			}
		}
		ours[key] = true
		writes = append(writes, put(key, table.Event{ChatID: e.GetChatId(), Version: version, EventID: l.ID, Type: l.Type,
			Payload: slices.Clone(l.Payload)}.Item()))
		if len(writes) < repairWrites {
			return nil
		}
		return flush()
	})
	return errors.Join(err, flush())
}

// copyNames names what has copies of events.
func (c *checker) copyNames() string {
	if c.Backup != nil {
		return "the event log or the backup"
	}
	return "the event log"
}

// copies reads the events of chats that the event log has, and then those of the backup, which are older.
func (c *checker) copies(each func(e event.Event, l backend.Logged, older bool) error) error {
	err := c.loggedEvents(func(e event.Event, l backend.Logged) error { return each(e, l, false) })
	if err != nil || c.Backup == nil {
		return err
	}
	for row, bad := range c.Backup.Raw.Rows(store.Events) {
		if bad != nil && row.Key.PK == "" {
			return fmt.Errorf("read the backup: %w", bad)
		}
		stored, unread := table.EventFrom(row)
		if err := cmp.Or(bad, unread, c.ctx.Err()); err != nil {
			continue
		}
		l := backend.Logged{ID: stored.EventID, Type: stored.Type, Payload: stored.Payload}
		if e := l.Event(); e != nil {
			if err := each(e, l, true); err != nil {
				return err
			}
		}
	}
	return c.ctx.Err()
}

// loggedEvents reads the events of chats that the log has, a partition after the other.
func (c *checker) loggedEvents(each func(event.Event, backend.Logged) error) (err error) {
	for _, t := range c.Data.Topics() {
		if t.Kind != kafka.Chats {
			continue
		}
		for id := range t.Partitions {
			failed := c.Data.Records(kafka.Partition{Topic: t.Name, ID: id}, func(l backend.Logged) {
				if e := l.Event(); e != nil && err == nil {
					err = each(e, l)
				}
			})
			if err = errors.Join(err, failed, c.ctx.Err()); err != nil {
				return err
			}
		}
	}
	return nil
}
