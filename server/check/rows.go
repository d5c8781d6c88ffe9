package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/check/derive"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// differences collects the fields that differ from their derived values.
type differences []string

func (d *differences) num(name string, have, want int64) {
	if have != want {
		*d = append(*d, fmt.Sprintf("%s is %d, its events say %d", name, have, want))
	}
}

func (d *differences) str(name, have, want string) {
	if have != want {
		*d = append(*d, fmt.Sprintf("%s is %.80q, its events say %.80q", name, have, want))
	}
}

// String is all of them in one line.
func (d differences) String() string { return strings.Join(d, ", ") }

// compare reports a row that is missing, unreadable, or different.
func (p *chats) compare(k Kind, key store.Key, there bool, bad error, d differences, writes ...store.Write) error {
	switch {
	case bad != nil:
		return p.found(k, key, fmt.Sprintf("the row cannot be read: %v", bad), byRepair, writes...)
	case !there:
		return p.found(k, key, "the row is missing", byRepair, writes...)
	case len(d) > 0:
		return p.found(k, key, d.String(), byRepair, writes...)
	}
	return nil
}

func (p *chats) head(o *storedChat, c *derive.Chat) error {
	have, want := table.HeadFrom(o.id, o.head), c.Head
	var d differences
	d.num("version", have.Version, want.Version)
	d.num("sequence", have.Sequence, want.Sequence)
	d.num("membership_version", have.MembershipVersion, want.MembershipVersion)
	d.num("changed_at", have.ChangedAt, want.ChangedAt)
	if have.LastAt != 0 { // rows of earlier releases have none
		d.num("last_message_at", have.LastAt, want.LastAt)
	}
	d.num("last_sequence", have.LastSequence, want.LastSequence)
	d.str("last_sender", have.LastSender, want.LastSender)
	if have.LastPreview != want.LastPreview {
		d = append(d, "last_preview is not the beginning of the last message")
	}
	key := table.HeadKey(o.id)
	return p.compare(HeadWrong, key, o.head != nil, o.bad[store.ChatCounters], d, put(key, want.Item()))
}

func (p *chats) row(o *storedChat, c *derive.Chat) error {
	have, want := table.ChatFrom(o.id, o.row), c.Row
	var d differences
	d.str("chat_type", string(have.Type), string(want.Type))
	d.str("name", have.Name, want.Name)
	d.str("created_by", have.CreatedBy, want.CreatedBy)
	d.str("status", string(have.Status), string(want.Status))
	d.str("history", string(have.History), string(want.History))
	d.num("member_count", have.MemberCount, want.MemberCount)
	d.num("created_at", have.CreatedAt, want.CreatedAt)
	d.num("updated_at", have.UpdatedAt, want.UpdatedAt)
	d.num("version", have.Version, want.Version)
	d.str("direct_users", strings.Join(have.DirectUsers, " "), strings.Join(want.DirectUsers, " "))
	key := table.ChatKey(o.id)
	return p.compare(ChatWrong, key, o.row != nil, o.bad[store.Chats], d, put(key, want.Item()))
}

func (p *chats) pendingRow(o *storedChat, c *derive.Chat) error {
	key, bad := table.PendingKey(o.id), o.bad[store.PendingMembers]
	want, wanted := c.PendingRow()
	if !wanted {
		if o.pending == nil && bad == nil {
			return nil
		}
		return p.found(PendingWrong, key, "the events say that no member is on the way in", "--repair removes the row",
			remove(key))
	}
	var d differences
	if have := table.PendingFrom(o.id, o.pending); !slices.Equal(have.Members, want.Members) {
		d = append(d, fmt.Sprintf("members are %s, the events say %s", short(have.Members), short(want.Members)))
	}
	return p.compare(PendingWrong, key, o.pending != nil, bad, d, put(key, want.Item()))
}

func (p *chats) memberRows(o *storedChat, c *derive.Chat) error {
	for _, user := range slices.Sorted(maps.Keys(c.Members)) {
		want := c.Members[user]
		have, there := o.members[user]
		delete(o.members, user)
		key := table.MembershipKey(o.id, user)
		var d differences
		d.str("role", string(have.Role), string(want.Role))
		d.num("joined_at", have.JoinedAt, want.JoinedAt)
		d.num("joined_sequence", have.JoinedSequence, want.JoinedSequence)
		d.num("joined_version", have.JoinedVersion, want.JoinedVersion)
		d.num("version", have.Version, want.Version)
		if err := p.compare(MemberWrong, key, there, nil, d, put(key, want.Item())); err != nil {
			return err
		}
	}
	for _, user := range slices.Sorted(maps.Keys(o.members)) {
		key := table.MembershipKey(o.id, user)
		if err := p.found(MemberWrong, key, "the events say that this user is not a member", "--repair removes the row",
			remove(key)); err != nil {
			return err
		}
	}
	return nil
}

// get reads a row by its key; bad says why an existing row cannot be read.
func (c *checker) get(k store.Key) (it store.Item, bad error, err error) {
	it, err = c.st.Get(c.ctx, k, store.Strong)
	if ignoreCorrupt(err) == nil {
		return it, err, nil
	}
	return nil, nil, err
}

// userRows compares each member's own row of the chat. With a missing row the state without
// events is lost: the read position, muted and archived.
func (p *chats) userRows(o *storedChat, c *derive.Chat) error {
	for _, user := range slices.Sorted(maps.Keys(c.Members)) {
		key := table.UserChatKey(user, o.id)
		it, bad, err := p.get(key)
		if err != nil {
			return err
		}
		want := c.UserChat(user)
		if it != nil && bad == nil {
			var d differences
			if want, d = repaired(table.UserChatFrom(user, o.id, it), want, c); len(d) > 0 {
				err = p.found(UserChatWrong, key, d.String(), byRepair, put(key, want.Item()))
			}
		} else {
			err = p.compare(UserChatWrong, key, it != nil, bad, nil, put(key, want.Item()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repaired returns a member's row with the derived fields corrected, and their differences.
func repaired(have, want table.UserChat, c *derive.Chat) (table.UserChat, differences) {
	var d differences
	last := c.Head.Sequence
	row := have
	if have.Role != "" { // rows of earlier releases have none
		d.str("role", string(have.Role), string(want.Role))
		row.Role = want.Role
	}
	d.str("history", string(have.History), string(want.History))
	d.num("joined_sequence", have.JoinedSequence, want.JoinedSequence)
	d.num("joined_version", have.JoinedVersion, want.JoinedVersion)
	row.History, row.JoinedSequence, row.JoinedVersion = want.History, want.JoinedSequence, want.JoinedVersion
	if have.ReadSequence < want.JoinedSequence || have.ReadSequence > last {
		d = append(d, fmt.Sprintf("read_sequence is %d, the events say %d to %d", have.ReadSequence,
			want.JoinedSequence, last))
		row.ReadSequence = min(max(have.ReadSequence, want.JoinedSequence), last)
	}
	row.OwnCount, row.OwnLast = ownUnread(row, c)
	row.OwnFrom = min(row.OwnFrom, row.ReadSequence)
	d.num("own_from", have.OwnFrom, row.OwnFrom)
	d.num("own_count", have.OwnCount, row.OwnCount)
	d.num("own_last", have.OwnLast, row.OwnLast)
	if have.DeliveredSequence < 0 || have.DeliveredSequence > last {
		d = append(d, fmt.Sprintf("delivered_sequence is %d, the chat has %d messages", have.DeliveredSequence, last))
		row.DeliveredSequence = min(max(have.DeliveredSequence, want.DeliveredSequence), last)
	}
	if have.Peer != "" { // nor have they this
		d.str("peer", have.Peer, want.Peer)
		row.Peer = want.Peer
	}
	if have.PeerReadSequence < 0 || have.PeerReadSequence > last {
		d = append(d, fmt.Sprintf("peer_read_sequence is %d, the chat has %d messages", have.PeerReadSequence, last))
		row.PeerReadSequence = min(max(have.PeerReadSequence, 0), last)
	}
	if have.LeftVersion != 0 || have.ExpiresAt != 0 {
		d = append(d, "it says that the user left, the events do not")
		row.LeftVersion, row.ExpiresAt = 0, 0
	}
	row.Revision++
	return row, d
}

// ownUnread returns what a row says of the member's own messages that are not read, if it can be so, and
// otherwise the least: that the last of them is the member's.
func ownUnread(row table.UserChat, c *derive.Chat) (count, sequence int64) {
	last, total := c.Own(row.UserID)
	if last <= row.ReadSequence { // a mark removes the count, or an earlier release has raised the position
		if row.OwnLast <= row.ReadSequence {
			return row.OwnCount, row.OwnLast
		}
		return 0, 0
	}
	most := min(total, last-row.OwnFrom)
	if row.OwnLast != last || row.OwnCount < 1 || row.OwnCount > most {
		return 1, last
	}
	return row.OwnCount, row.OwnLast
}

// leftRows compares the rows of users who left recently.
func (p *chats) leftRows(_ *storedChat, c *derive.Chat) error {
	for _, user := range slices.Sorted(maps.Keys(c.Departed)) {
		want := c.Departed[user]
		if want.ExpiresAt <= p.now.Unix() {
			continue
		}
		for _, key := range []store.Key{table.LeftKey(user, want.ChatID),
			table.LeftLogKey(user, want.ChangedAt, want.ChatID)} {
			it, bad, err := p.get(key)
			if err != nil {
				return err
			}
			var d differences
			d.num("left_version", table.UserChatFrom(user, want.ChatID, it).LeftVersion, want.LeftVersion)
			if it == nil && bad == nil { // earlier releases kept the row in its place
				old, _, err := p.get(table.UserChatKey(user, want.ChatID))
				if err != nil || old != nil {
					return err
				}
			}
			if err := p.compare(LeftWrong, key, it != nil, bad, d, put(key, want.Item())); err != nil {
				return err
			}
		}
	}
	return nil
}

// pair compares the entry of the index by which two users find their direct chat.
func (p *chats) pair(o *storedChat, c *derive.Chat) error {
	if c.Row.Type != table.Direct || len(c.Row.DirectUsers) != 2 {
		return nil
	}
	key := table.DirectIndexKey(c.Row.DirectUsers[0], c.Row.DirectUsers[1])
	it, bad, err := p.get(key)
	if err != nil {
		return err
	}
	var d differences
	d.str("chat_id", table.DirectIndexFrom(it).ChatID, o.id)
	return p.compare(PairWrong, key, it != nil, bad,
		d, put(key, table.DirectIndex{ChatID: o.id, CreatedAt: c.Row.CreatedAt}.Item()))
}

// request compares the idempotency row of a send, until it expires.
func (p *chats) request(m table.Message) error {
	const margin = 60 * 60 // seconds; clocks differ
	sent := command.Send{Caller: m.SenderID, ChatID: m.ChatID, ClientMessageID: m.ClientMessageID, Content: m.Content,
		ContentType: m.ContentType}.Idempotency()
	want := table.Request{
		Scope: sent.Key, Hash: sent.Hash, ChatID: m.ChatID, MessageID: m.MessageID, Sequence: m.Sequence, Version: m.Version,
		CreatedAt: m.CreatedAt, ExpiresAt: m.CreatedAt/1000 + int64(table.SendRetention.Seconds()),
	}
	if want.ExpiresAt-margin <= p.now.Unix() || m.ClientMessageID == "" { // no client has sent a placeholder
		return nil
	}
	key := table.RequestKey(want.Scope)
	it, bad, err := p.get(key)
	if err != nil {
		return err
	}
	have := table.RequestFrom(want.Scope, it)
	var d differences
	d.str("message_id", have.MessageID, want.MessageID)
	d.num("sequence", have.Sequence, want.Sequence)
	d.num("version", have.Version, want.Version)
	d.str("chat_id", have.ChatID, want.ChatID)
	if !sent.Matches(have.Hash) {
		d = append(d, "hash is not the message's")
	}
	return p.compare(RequestWrong, key, it != nil, bad, d, put(key, want.Item()))
}
