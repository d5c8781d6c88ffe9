package check

import (
	"cmp"
	"fmt"
	"slices"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/backend/restore"
	"github.com/parley-chat/parley/server/check/derive"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// chats reads the tables of chats side by side.
type chats struct {
	*checker
	heads, rows, members, pending, events, messages *stream
}

// chats compares the rows of each chat with its events.
func (c *checker) chats() (err error) {
	p := &chats{checker: c}
	for _, s := range []struct {
		to *(*stream)
		of store.Table
	}{
		{&p.heads, store.ChatCounters},
		{&p.rows, store.Chats},
		{&p.members, store.ChatMemberships},
		{&p.pending, store.PendingMembers},
		{&p.events, store.Events},
		{&p.messages, store.Messages},
	} {
		if *s.to, err = c.stream(s.of); err != nil {
			return err
		}
		defer (*s.to).stop()
	}
	for {
		id, any := "", false
		for _, s := range p.all() {
			if s.ok && (!any || s.row.Key.PK < id) {
				id, any = s.row.Key.PK, true
			}
		}
		if !any {
			return nil
		}
		c.report.Chats++
		if err := p.chat(id); err != nil {
			return err
		}
	}
}

func (p *chats) all() []*stream {
	return []*stream{p.heads, p.rows, p.members, p.pending, p.events, p.messages}
}

// storedChat is what is stored of a chat besides its events and messages.
type storedChat struct {
	id      string
	head    store.Item
	row     store.Item
	pending store.Item
	members map[string]table.Membership
	bad     map[store.Table]error
	waiting []table.Outbox // in order
	lost    []int64        // versions that are neither published nor in the outbox
}

// chat checks one chat.
func (p *chats) chat(id string) error {
	o := &storedChat{id: id, members: map[string]table.Membership{}, bad: map[store.Table]error{}}
	var err error
	if o.waiting, err = p.waiting(id); err != nil {
		return err
	}
	for _, s := range []struct {
		of *stream
		to *store.Item
	}{{p.heads, &o.head}, {p.rows, &o.row}, {p.pending, &o.pending}} {
		if *s.to, o.bad[s.of.table], err = s.of.pop(id); err != nil {
			return err
		}
	}
	if err := p.readMembers(o); err != nil {
		return err
	}
	d, whole, err := p.foldEvents(o)
	if err != nil {
		return err
	}
	if !whole {
		p.unchecked[id] = true
		if d.Head.Version > 0 {
			if err := p.partly(o, d); err != nil {
				return err
			}
		}
		for _, s := range p.all() {
			if _, err := s.skip(id); err != nil {
				return err
			}
		}
		return nil
	}
	if extra, err := p.extraMessages(id, d); err != nil || extra {
		p.unchecked[id] = p.unchecked[id] || extra
		return err
	}
	if ahead, err := p.ahead(o, d); err != nil || ahead {
		p.unchecked[id] = p.unchecked[id] || ahead
		return err
	}
	for _, check := range []func(*storedChat, *derive.Chat) error{p.head, p.row, p.pendingRow, p.memberRows, p.userRows,
		p.leftRows, p.pair, p.unpublished} {
		if err := check(o, d); err != nil {
			return err
		}
	}
	return nil
}

// partly checks of a chat that has lost changes what its events still say: its head. Without it nothing
// more can be sent.
func (p *chats) partly(o *storedChat, d *derive.Chat) error {
	if extra, err := p.extraMessages(o.id, d); err != nil || extra {
		return err
	}
	if ahead, err := p.ahead(o, d); err != nil || ahead {
		return err
	}
	return p.head(o, d)
}

// readMembers reads the members.
func (p *chats) readMembers(o *storedChat) error {
	for p.members.at(o.id) {
		key := p.members.row.Key
		it, bad, err := p.members.pop(o.id)
		if err != nil {
			return err
		}
		m := table.MembershipFrom(key.PK, key.SK, it)
		if bad != nil {
			m = table.Membership{} // differs from all that there can be
		}
		o.members[key.SK] = m
	}
	return nil
}

// foldEvents derives the chat from its events and compares the messages. It continues behind events that
// are lost. whole is false if some of those were no messages: then only the head of d is right.
func (p *chats) foldEvents(o *storedChat) (d *derive.Chat, whole bool, err error) {
	d, whole = derive.New(o.id), true
	var unreadable error
	for p.events.at(o.id) {
		key := p.events.row.Key
		it, bad, err := p.events.pop(o.id)
		if err != nil {
			return d, false, err
		}
		p.report.Events++
		e, id, bad := decode(store.Row{Key: key, Item: it}, bad)
		if bad != nil {
			unreadable = cmp.Or(unreadable, bad)
			continue
		}
		if version, membership := before(e); version > d.Head.Version {
			exact, err := p.gap(o, d, version, membership, unreadable)
			if err != nil {
				return d, false, err
			}
			whole, unreadable = whole && exact, nil
		}
		if bad = d.Apply(e); bad != nil {
			what := fmt.Sprintf("the events of the chat are whole up to version %d only: %v", d.Head.Version, bad)
			return d, false, p.found(EventWrong, key, what, restoreBackup+"; nothing else of this chat was checked")
		}
		if p.log.lacks(e, id) && !o.waits(e.GetMetadata().GetVersion()) {
			o.lost = append(o.lost, e.GetMetadata().GetVersion())
		}
		if m, ok := e.(*eventv1.MessagePersisted); ok {
			if err := p.message(derive.Message(m)); err != nil {
				return d, false, err
			}
		}
	}
	head := table.HeadFrom(o.id, o.head)
	// Behind the last event, the head says what is lost, if its numbers agree with each other.
	if lost := head.Version - d.Head.Version; p.Repair && whole && lost > 0 && d.Head.Version > 0 &&
		head.Sequence-d.Head.Sequence+head.MembershipVersion-d.Head.MembershipVersion == lost {
		exact, err := p.gap(o, d, head.Version, head.MembershipVersion, unreadable)
		return d, exact, err
	}
	switch {
	case unreadable != nil:
		return d, false, p.found(EventWrong, table.EventKey(o.id, d.Head.Version+1),
			fmt.Sprintf("the events of the chat are whole up to version %d only: %v", d.Head.Version, unreadable),
			lostRemedy(p.Repair))
	case d.Head.Version == 0:
		return d, false, p.found(EventWrong, location(string(store.Events)+"/"+o.id),
			"there are rows of a chat without events",
			lostRemedy(p.Repair)+"; nothing else of this chat was checked")
	}
	return d, whole, nil
}

func decode(row store.Row, bad error) (event.Event, string, error) {
	if bad != nil {
		return nil, "", fmt.Errorf("the row cannot be read: %w", bad)
	}
	e, err := table.EventFrom(row)
	if err != nil {
		return nil, "", err
	}
	decoded, err := event.Unmarshal(e.Type, e.Payload)
	if err == nil && decoded.GetMetadata().GetEventId() != e.EventID {
		err = fmt.Errorf("the row has the id of another event")
	}
	return decoded, e.EventID, err
}

// message compares the next stored message with that of an event.
func (p *chats) message(want table.Message) error {
	p.report.Messages++
	key := table.MessageKey(want.ChatID, want.Sequence)
	for p.messages.at(want.ChatID) && p.messages.row.Key.SK < key.SK {
		if err := p.found(MessageWrong, p.messages.row.Key, "no event has this message",
			"nothing else says whether it was sent: "+restoreBackup); err != nil {
			return err
		}
		if err := p.messages.advance(); err != nil {
			return err
		}
	}
	if p.messages.at(want.ChatID) && p.messages.row.Key == key {
		row := p.messages.row
		_, bad, err := p.messages.pop(want.ChatID)
		if err != nil {
			return err
		}
		have, bad2 := table.MessageFrom(row)
		if bad = cmp.Or(bad, bad2); bad != nil {
			err = p.found(MessageWrong, key, fmt.Sprintf("the row cannot be read: %v", bad), byRepair, put(key, want.Item()))
		} else if have != want {
			err = p.found(MessageWrong, key, differ(have, want), byRepair, put(key, want.Item()))
		}
		if err != nil {
			return err
		}
	} else if err := p.found(MessageWrong, key, "the row is missing", byRepair, put(key, want.Item())); err != nil {
		return err
	}
	return p.request(want)
}

// differ lists the fields in which a message differs from its event, without its content.
func differ(have, want table.Message) string {
	var d differences
	d.str("message_id", have.MessageID, want.MessageID)
	d.str("sender_id", have.SenderID, want.SenderID)
	d.num("created_at", have.CreatedAt, want.CreatedAt)
	d.num("version", have.Version, want.Version)
	d.str("client_message_id", have.ClientMessageID, want.ClientMessageID)
	d.num("content_type", have.ContentType, want.ContentType)
	if have.Content != want.Content {
		d = append(d, "content is another than its event's")
	}
	return d.String()
}

// extraMessages finds messages after the last one with an event: their events are missing.
func (p *chats) extraMessages(id string, d *derive.Chat) (bool, error) {
	if !p.messages.at(id) {
		return false, nil
	}
	key := p.messages.row.Key
	n, err := p.messages.skip(id)
	if err != nil {
		return true, err
	}
	what := fmt.Sprintf("%d messages from this one on have no events, which end with version %d", n, d.Head.Version)
	return true, p.found(HeadAhead, key, what, "acknowledged changes are missing: "+lostRemedy(p.Repair))
}

// ahead finds a head that is ahead of the events: their end is missing.
func (p *chats) ahead(o *storedChat, d *derive.Chat) (bool, error) {
	head := table.HeadFrom(o.id, o.head)
	if head.Version <= d.Head.Version && head.Sequence <= d.Head.Sequence {
		return false, nil
	}
	what := fmt.Sprintf("it is at version %d, message %d; the events end with version %d, message %d", head.Version,
		head.Sequence, d.Head.Version, d.Head.Sequence)
	return true, p.found(HeadAhead, table.HeadKey(o.id), what, "acknowledged changes are missing: "+lostRemedy(p.Repair))
}

// waiting lists a chat's rows of the outbox.
func (p *chats) waiting(id string) (list []table.Outbox, err error) {
	q := store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(id)), From: id + "#", To: id + "#~",
		Consistency: store.Strong}
	for row, err := range store.QueryAll(p.ctx, p.st, q) {
		if err != nil {
			return nil, ignoreCorrupt(err)
		}
		if r, err := table.OutboxFrom(row); err == nil {
			list = append(list, r)
		}
	}
	return list, nil
}

// waits reports whether a version is in the outbox. It must be called in order of versions.
func (o *storedChat) waits(version int64) bool {
	for len(o.waiting) > 0 && o.waiting[0].FirstVersion+o.waiting[0].Count <= version {
		o.waiting = o.waiting[1:]
	}
	return slices.ContainsFunc(o.waiting, func(r table.Outbox) bool {
		return r.FirstVersion <= version && version < r.FirstVersion+r.Count
	})
}

// unpublished finds events that will not be published.
func (p *chats) unpublished(o *storedChat, _ *derive.Chat) error {
	if len(o.lost) == 0 {
		return nil
	}
	first := o.lost[0]
	what := fmt.Sprintf("%d events from version %d on are neither in the log nor in the outbox", len(o.lost), first)
	slices.Reverse(o.lost)
	return p.found(EventUnpublished, table.EventKey(o.id, first), what,
		"--repair puts them into the outbox, from where they are published", restore.Rows(o.id, o.lost, p.now.UnixMilli())...)
}
