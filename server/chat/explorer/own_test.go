package explorer

import (
	"slices"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ownMessages holds what a row says of the user's own messages that are not read against the messages.
func (w *world) ownMessages(o *op, row table.UserChat) {
	var count, last int64
	for n := row.ReadSequence + 1; ; n++ {
		key := table.MessageKey(row.ChatID, n)
		it := w.get(key)
		if it == nil {
			break
		}
		m, err := table.MessageFrom(store.Row{Key: key, Item: it})
		if err != nil {
			w.fail("%v: message %d: %v", o, n, err)
		}
		if m.SenderID == row.UserID {
			count, last = count+1, n
		}
	}
	if row.OwnCount != count || row.OwnLast != last || !row.OwnCounted() {
		w.fail("%v: %d own messages to %d after %d of %s, the row says %d to %d", o, count, last, row.ReadSequence,
			row.UserID, row.OwnCount, row.OwnLast)
	}
}

// sendReads is a plan in which a message raises its sender's read position.
func sendReads(p store.Plan) store.Plan {
	return changedUpdates(p, func(w *store.Write) {
		for _, a := range w.Update.Set {
			if a.Name == table.AttrOwnLast {
				w.Update.Set = append(w.Update.Set, store.Attr{Name: table.AttrReadSequence, Value: a.Value})
			}
		}
	})
}

// forgetsOwn is a plan in which a mark takes all own messages for read.
func forgetsOwn(p store.Plan) store.Plan {
	return changedUpdates(p, func(w *store.Write) {
		marks := slices.ContainsFunc(w.Update.Set, func(a store.Attr) bool { return a.Name == table.AttrReadSequence })
		if marks {
			w.Update.Set = slices.DeleteFunc(w.Update.Set, func(a store.Attr) bool { return a.Name == table.AttrOwnCount })
			w.Update.Remove = []string{table.AttrOwnCount, table.AttrOwnLast}
		}
	})
}

// changedUpdates is a plan with other updates of users' rows.
func changedUpdates(p store.Plan, change func(w *store.Write)) store.Plan {
	p.Writes = slices.Clone(p.Writes)
	for i := range p.Writes {
		if w := &p.Writes[i]; w.Op == store.OpUpdate && w.Key.Table == store.DeliveryState {
			w.Update.Set = slices.Clone(w.Update.Set)
			change(w)
		}
	}
	return p
}
