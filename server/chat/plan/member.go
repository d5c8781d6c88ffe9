package plan

import (
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Changes of a member's own row of a chat affect no other member and do not pass the chat's
// head.

// ApplySettings returns the row after a change of the member's settings.
func ApplySettings(c command.MemberSettings, row table.UserChat, at int64) table.UserChat {
	if c.MutedUntil != nil {
		row.MutedUntil = *c.MutedUntil
	}
	if c.Archived != nil {
		row.Archived = *c.Archived
	}
	row.ChangedAt = at
	row.Revision++
	return row
}

// Settings makes the writes of the plan that changes a member's row from before to what
// ApplySettings returned.
func Settings(c command.MemberSettings, before, after table.UserChat, head table.Head) []store.Write {
	b := &builder{Plan: Plan{Head: head, At: after.ChangedAt}}
	b.recordIdempotency(c.Idempotency(), head.Version)
	u := rowUpdate(after)
	if after.MutedUntil != 0 {
		u.Set = append(u.Set, store.Attr{Name: table.AttrMutedUntil, Value: store.Int(after.MutedUntil)})
	} else {
		u.Remove = append(u.Remove, table.AttrMutedUntil)
	}
	if after.Archived {
		u.Set = append(u.Set, store.Attr{Name: table.AttrArchived, Value: store.Bool(true)})
	} else {
		u.Remove = append(u.Remove, table.AttrArchived)
	}
	b.update(CondUser, unchangedRow(before), table.UserChatKey(c.Caller, c.ChatID), u)
	return b.writes
}

// MarkRead makes the write that raises a member's read position to sequence, which must be
// one of the chat and above the row's, and returns the row after it. own is how many of the member's
// own messages follow on sequence. If it notifies the other person of a direct chat, neither may
// block the other: that changes no revision.
func MarkRead(row table.UserChat, sequence, own, at int64, notifies bool) (table.UserChat, store.Write) {
	// Only from the row as it was read: its revision must not stand for anything
	// but what is reported under it.
	cond := unchangedRow(row)
	if notifies {
		cond = people.Unbarred(cond)
	}
	row.ReadSequence, row.OwnFrom, row.OwnCount = sequence, sequence, own
	if own == 0 {
		row.OwnLast = 0
	}
	row, w := raise(row, at, CondUser, cond, table.AttrReadSequence, sequence)
	w.Update.Set = append(w.Update.Set, store.Attr{Name: table.AttrOwnFrom, Value: store.Int(sequence)})
	if own > 0 {
		w.Update.Set = append(w.Update.Set, store.Attr{Name: table.AttrOwnCount, Value: store.Int(own)})
	} else {
		w.Update.Remove = append(w.Update.Remove, table.AttrOwnCount, table.AttrOwnLast)
	}
	return row, w
}

// MarkPeerRead makes the write that records in a member's row of a direct chat how far the
// other person has read, and returns the row after it. It belongs to the plan that raises
// the other person's position.
func MarkPeerRead(row table.UserChat, sequence, at int64) (table.UserChat, store.Write) {
	cond := unchangedRow(row)
	row.PeerReadSequence = sequence
	return raise(row, at, CondPeer, cond, table.AttrPeerReadSequence, sequence)
}

// MarkPeerReadAnyhow is MarkPeerRead for any state of the row, which belongs to the other
// person, not to the reader.
func MarkPeerReadAnyhow(reader table.UserChat, sequence, at int64) store.Write {
	row := table.UserChat{UserID: reader.Peer, ChatID: reader.ChatID}
	_, w := raise(row, at, CondPeer, table.IsMember(), table.AttrPeerReadSequence, sequence)
	return w
}

// raise makes the write of a position to a member's row under the row's next revision.
func raise(
	row table.UserChat, at int64, name string, cond store.Condition, attr string, sequence int64,
) (table.UserChat, store.Write) {
	row.ChangedAt, row.Revision = at, row.Revision+1
	u := rowUpdate(row)
	u.Set = append(u.Set, store.Attr{Name: attr, Value: store.Int(sequence)})
	return row, store.Write{Op: store.OpUpdate, Name: name, Cond: cond, Key: table.UserChatKey(row.UserID, row.ChatID),
		Update: u}
}

// Delivered makes the write that raises a member's delivered position. It counts as no
// change of the row.
func Delivered(user, chatID string, sequence int64) store.Write {
	return store.Write{
		Op: store.OpUpdate, Key: table.UserChatKey(user, chatID), Name: CondUser,
		Cond:   table.IsMember().Lt(table.AttrDeliveredSequence, store.Int(sequence)),
		Update: store.Update{Set: []store.Attr{{Name: table.AttrDeliveredSequence, Value: store.Int(sequence)}}},
	}
}

// nextRevision is the part of an update of a user's row that counts the change.
var nextRevision = []store.Increment{{Name: table.AttrRevision, N: 1}}

// rowUpdate is the part of an update of a user's row that all changes share: time,
// revision, and the role, which rows of earlier releases lack.
func rowUpdate(row table.UserChat) store.Update {
	u := store.Update{Set: []store.Attr{{Name: table.AttrChangedAt, Value: store.Int(row.ChangedAt)}}, Add: nextRevision}
	if row.Role != "" {
		u.Set = append(u.Set, store.Attr{Name: table.AttrRole, Value: store.String(string(row.Role))})
	}
	return u
}

// unchangedRow is the condition that a member's row is as it was read: its revision
// says so, and where an earlier release changed it meanwhile, its time.
func unchangedRow(before table.UserChat) store.Condition {
	cond := table.IsMember().Eq(table.AttrChangedAt, store.Int(before.ChangedAt))
	if before.Revision == 0 {
		return cond.Without(table.AttrRevision)
	}
	return cond.Eq(table.AttrRevision, store.Int(before.Revision))
}
