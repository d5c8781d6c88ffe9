package check

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A backup has the events of chats, too: lost rows of the store are restored from there. Not all that a
// backup has is part of a chat's history: after a loss that was accepted the chat went on with other
// events of the same versions. The newest event of a chat is of the line of history that counts, and so
// are all events up to its version.

// line is how far the line of history of a chat goes that counts.
type line struct {
	generation string // of the newest event
	at         int64  // its time, unix ms
	version    int64  // the highest of that generation, and of the store

	restored    int64 // events
	first, last int64 // versions of those
}

// add counts an event that the store or the backup has.
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

// lostEvents puts events back into the store that only the backup has. A check without repair finds
// them as gaps of their chats.
func (c *checker) lostEvents() error {
	if !c.Repair || c.noRepair != "" || c.Backup == nil {
		return nil
	}
	lines := map[string]*line{}
	err := c.copies(func(e event.Event, _ table.Event) error {
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
				What: fmt.Sprintf("%d events of the chat, from version %d to %d, were missing, and the backup had them", l.restored,
					l.first, l.last)})
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
	flush := func() error {
		err := c.write(EventWrong, writes)
		writes = nil
		return err
	}
	err := c.copies(func(e event.Event, had table.Event) error {
		at := lines[e.GetChatId()]
		if had.Version > at.version {
			return nil
		}
		key := table.EventKey(had.ChatID, had.Version)
		it, err := c.st.Get(c.ctx, key, store.Strong)
		if ignoreCorrupt(err) != nil || it != nil && !isPlaceholder(store.Row{Key: key, Item: it}, had.EventID) {
			return err
		}
		at.restored++
		at.first, at.last = min(cmp.Or(at.first, had.Version), had.Version), max(at.last, had.Version)
		writes = append(writes, put(key, had.Item()))
		if len(writes) < repairWrites {
			return nil
		}
		return flush()
	})
	return errors.Join(err, flush())
}

// copies reads the events of chats that the backup has.
func (c *checker) copies(each func(e event.Event, row table.Event) error) error {
	for row, bad := range c.Backup.Raw.Rows(store.Events) {
		if bad != nil && row.Key.PK == "" {
			return fmt.Errorf("read the backup: %w", bad)
		}
		stored, unread := table.EventFrom(row)
		if err := cmp.Or(bad, unread, c.ctx.Err()); err != nil {
			continue
		}
		if e, err := event.Unmarshal(stored.Type, stored.Payload); err == nil && len(stored.Payload) > 0 {
			stored.Payload = slices.Clone(stored.Payload)
			if err := each(e, stored); err != nil {
				return err
			}
		}
	}
	return c.ctx.Err()
}
