package check

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// eachRow calls f with each readable row of a table; the others are findings.
func (c *checker) eachRow(t store.Table, f func(store.Row) error) error {
	s, err := c.stream(t)
	if err != nil {
		return err
	}
	defer s.stop()
	for ; s.ok && err == nil; err = s.advance() {
		if s.bad != nil {
			err = c.found(RowUnreadable, s.row.Key, s.bad.Error(), restoreBackup)
		} else {
			err = f(s.row)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// users compares users with their chats, in the direction that checking chats does not
// cover: rows of chats that the user is not in, and the number of chats.
func (c *checker) users() error {
	people, err := c.stream(store.Users)
	if err != nil {
		return err
	}
	defer people.stop()
	rows, err := c.stream(store.DeliveryState)
	if err != nil {
		return err
	}
	defer rows.stop()
	for people.ok || rows.ok {
		id := people.row.Key.PK
		if !people.ok || rows.ok && rows.row.Key.PK < id {
			id = rows.row.Key.PK
		}
		if user, left := strings.CutSuffix(id, table.LeftPartition("")); left {
			err = c.departed(rows, user)
		} else {
			err = c.user(people, rows, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) user(people, rows *stream, id string) error {
	there := people.at(id)
	it, bad, err := people.pop(id)
	if err != nil {
		return err
	}
	c.report.Users++
	n, since := int64(0), c.now.UnixMilli()
	for rows.at(id) {
		row, unreadable := rows.row, rows.bad
		if err := rows.advance(); err != nil {
			return err
		}
		u := table.UserChatFrom(id, row.Key.SK, row.Item)
		if u.Left() {
			continue
		}
		m, badMember, err := c.get(table.MembershipKey(row.Key.SK, id))
		if err != nil {
			return err
		}
		if m == nil && badMember == nil {
			var writes []store.Write
			if !c.unchecked[row.Key.SK] {
				writes = append(writes, remove(row.Key))
			}
			if err := c.found(UserChatWrong, row.Key, "the user is not a member of the chat", "--repair removes the row",
				writes...); err != nil {
				return err
			}
			if c.Repair && len(writes) > 0 && c.noRepair == "" {
				continue
			}
		} else if unreadable == nil && m != nil {
			since = min(since, table.MembershipFrom(row.Key.SK, id, m).JoinedAt)
		}
		n++
	}
	have := table.UserFrom(id, it)
	want := have
	want.Chats, want.Counted = n, true
	key := table.UserKey(id)
	switch {
	case !there || bad != nil:
		want.UserID, want.CreatedAt, want.Status = id, since, table.Active
		what := "the row is missing"
		if bad != nil {
			what = fmt.Sprintf("the row cannot be read: %v", bad)
		}
		return c.found(UserWrong, key, what, "--repair writes it again, since when the user exists is taken from the chats",
			put(key, want.Item()))
	case have.Counted && have.Chats != n:
		return c.found(UserWrong, key, fmt.Sprintf("chats is %d, the user is in %d", have.Chats, n),
			"--repair sets the number", put(key, want.Item()))
	}
	return nil
}

// departed compares the two rows of each chat that a user left: each determines the other.
func (c *checker) departed(rows *stream, user string) error {
	pk := table.LeftPartition(user)
	if err := c.former(user); err != nil {
		return err
	}
	for rows.at(pk) {
		row, bad := rows.row, rows.bad
		if err := rows.advance(); err != nil {
			return err
		}
		if bad != nil {
			if err := c.found(LeftWrong, row.Key, bad.Error(),
				"--repair removes it, and writes it again from its twin or the events the next time", remove(row.Key)); err != nil {
				return err
			}
			continue
		}
		if store.Expired(row.Item, c.now.Unix()) {
			continue
		}
		u := table.UserChatFrom(user, row.Key.SK, row.Item)
		other := table.LeftLogKey(user, u.ChangedAt, row.Key.SK)
		if strings.HasPrefix(row.Key.SK, "#") {
			other = table.LeftKey(user, table.LeftLogFrom(user, row).ChatID)
		}
		it, bad, err := c.get(other)
		if err != nil {
			return err
		}
		if it == nil && bad == nil {
			if err := c.found(LeftWrong, other, "the row is missing, its twin is there",
				"--repair writes it again from its twin", put(other, row.Item)); err != nil {
				return err
			}
		}
	}
	return nil
}

// former finds a user without a row that is no longer in any chat.
func (c *checker) former(user string) error {
	key := table.UserKey(user)
	it, bad, err := c.get(key)
	if err != nil || it != nil || bad != nil {
		return err
	}
	page, err := c.st.Query(c.ctx, store.Query{Table: store.DeliveryState, PK: user, Limit: 1})
	if err != nil || len(page.Rows) > 0 { // was seen with these
		return ignoreCorrupt(err)
	}
	row := table.User{UserID: user, CreatedAt: c.now.UnixMilli(), Status: table.Active, Counted: true}
	return c.found(UserWrong, key, "the row is missing", "--repair writes it again", put(key, row.Item()))
}

// outbox checks the rows that wait to be published.
func (c *checker) outbox() error {
	return c.eachRow(store.Outbox, func(row store.Row) error {
		o, err := table.OutboxFrom(row)
		if err != nil {
			return c.found(OutboxWrong, row.Key, err.Error(), "outbox failed lists it, outbox drop removes it")
		}
		if shard := event.Shard(o.AggregateID); shard != o.Shard {
			moved := o
			moved.Shard = shard
			return c.found(OutboxWrong, row.Key, fmt.Sprintf("the chat's shard is %d: no relay publishes the row", shard),
				"--repair moves it", put(moved.Key(), row.Item), remove(row.Key))
		}
		if event.IsSearchStream(o.AggregateID) {
			return c.announced(row, o)
		}
		it, bad, err := c.get(table.HeadKey(o.AggregateID))
		if err != nil || bad != nil {
			return err
		}
		if head := table.HeadFrom(o.AggregateID, it); o.Count < 1 || o.FirstVersion < 1 ||
			o.FirstVersion+o.Count-1 > head.Version {
			what := fmt.Sprintf("it announces %d versions from %d on, the chat has %d", o.Count, o.FirstVersion, head.Version)
			return c.found(OutboxWrong, row.Key, what, "outbox failed lists it, outbox drop removes it")
		}
		return nil
	})
}

// announced finds a row of the outbox whose search events are missing.
func (c *checker) announced(row store.Row, o table.Outbox) error {
	if o.Replay {
		return nil // it may begin in the middle of what was recorded together
	}
	it, bad, err := c.get(table.SearchEventsKey(o.AggregateID, o.FirstVersion))
	if err != nil || bad != nil || it != nil {
		return err
	}
	return c.found(OutboxWrong, row.Key, "it announces search events that do not exist",
		"outbox failed lists it, outbox drop removes it")
}

// pairs finds entries of the index of direct chats that lead to no direct chat.
func (c *checker) pairs() error {
	return c.eachRow(store.DirectChatIndex, func(row store.Row) error {
		id := table.DirectIndexFrom(row.Item).ChatID
		it, bad, err := c.get(table.ChatKey(id))
		if err != nil || bad != nil {
			return err
		}
		users := table.ChatFrom(id, it).DirectUsers
		if it != nil && len(users) == 2 && table.DirectIndexKey(users[0], users[1]) == row.Key {
			return nil
		}
		var writes []store.Write
		if !c.unchecked[id] && it != nil { // the chat is there and belongs to others
			writes = append(writes, remove(row.Key))
		}
		return c.found(PairWrong, row.Key, fmt.Sprintf("it leads to chat %.80q, which is not these two people's", id),
			"--repair removes it if the chat is another's; if the chat is missing, "+restoreBackup, writes...)
	})
}

// requests checks the idempotency rows. Those of existing messages were compared with the
// messages.
func (c *checker) requests() error {
	return c.eachRow(store.IdempotencyKeys, func(row store.Row) error {
		parts := strings.SplitN(row.Key.PK, "#", 4)
		r := table.RequestFrom(row.Key.PK, row.Item)
		if len(parts) != 4 || len(r.Hash) < command.HashBytes || r.ExpiresAt <= 0 {
			return c.found(RequestWrong, row.Key, "it is not the row of a request",
				"a repetition of the request is refused until the row expires")
		}
		if store.Expired(row.Item, c.now.Unix()) || parts[0] != "send" || c.unchecked[r.ChatID] {
			return nil
		}
		it, bad, err := c.get(table.MessageKey(r.ChatID, max(r.Sequence, 0)))
		if err != nil || bad != nil {
			return err
		}
		if it.Get("message_id").Str() != r.MessageID {
			return c.found(RequestWrong, row.Key, "it answers with a message that is not there",
				"the send is not carried out again until the row expires; nothing else says that it was")
		}
		return nil
	})
}

// schemas checks the registry: schemas are readable, ids are below the counter, subjects
// count their versions, versions are in the index by id.
func (c *checker) schemas() error {
	var highest int64
	count := subjectCount{checker: c}
	err := c.eachRow(store.Schemas, func(row store.Row) error {
		if strings.HasPrefix(row.Key.PK, "#") {
			return nil
		}
		if err := count.next(row.Key.PK); err != nil {
			return err
		}
		s, err := table.SchemaFrom(row)
		if err == nil {
			err = proto.Unmarshal(s.Descriptor, &descriptorpb.FileDescriptorProto{})
		}
		if err != nil {
			return c.found(SchemaWrong, row.Key, fmt.Sprintf("the schema cannot be read: %v", err), restoreBackup)
		}
		highest = max(highest, s.ID)
		count.add(s)
		if s.ID < 1 {
			return c.found(SchemaWrong, row.Key, "the schema has no id", restoreBackup)
		}
		use := table.SchemaUseKey(s.ID, s.Subject, s.Version)
		it, bad, err := c.get(use)
		if err != nil || (it != nil && bad == nil) || s.Format < table.SchemaFormat {
			return err
		}
		return c.found(SchemaWrong, use, fmt.Sprintf("schema %d is not found by its id", s.ID),
			"--repair adds it to the index", put(use, store.Item{}))
	})
	if err == nil {
		err = count.next("")
	}
	if err != nil || highest == 0 {
		return err
	}
	key := table.SchemaCounterKey()
	it, _, err := c.get(key)
	if last := it.Get(table.AttrLastID).Int64(); err == nil && last < highest {
		err = c.found(SchemaWrong, key,
			fmt.Sprintf("the last id is %d, a schema has %d: the next one would get an id that is taken", last, highest),
			"--repair sets it",
			put(key, store.NewItem(store.Attr{Name: table.AttrLastID, Value: store.Int(highest)})))
	}
	return err
}

// subjectCount counts the versions of one subject after another.
type subjectCount struct {
	*checker
	subject string // "" before the first
	counted table.SchemaSubject
}

// add counts a version.
func (n *subjectCount) add(s table.Schema) {
	n.counted.Last, n.counted.Total = max(n.counted.Last, s.Version), n.counted.Total+1
	if !s.Deleted {
		n.counted.Live++
	}
}

// next begins a subject, if it is another one. First it compares the row of the subject
// before it with what was counted.
func (n *subjectCount) next(subject string) error {
	if subject == n.subject {
		return nil
	}
	before, want := n.subject, n.counted
	n.subject, n.counted = subject, table.SchemaSubject{}
	if before == "" {
		return nil
	}
	key := table.SchemaSubjectKey(before)
	it, bad, err := n.get(key)
	if err != nil {
		return err
	}
	have := table.SchemaSubjectFrom(it)
	want.Revision, want.Last = have.Revision+1, max(have.Last, want.Last)
	if it != nil && bad == nil && have.Live == want.Live && have.Total == want.Total && have.Last == want.Last {
		return nil
	}
	what := fmt.Sprintf("the subject has %d versions up to %d, %d of them live; the row says %d, %d and %d", want.Total,
		want.Last, want.Live, have.Total, have.Last, have.Live)
	return n.found(SchemaWrong, key, what, "--repair counts them again", put(key, want.Item()))
}

// others checks that the rows of the remaining tables are readable.
func (c *checker) others() error {
	for _, t := range []store.Table{
		store.Leases, store.Meta, store.ConsumerAttempts, store.DeadLetters, store.Sessions, store.OTPRequests,
		store.Notifications, store.Topics, store.Subscriptions, store.Projections,
	} {
		if err := c.eachRow(t, func(store.Row) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// expiries compares the index of expiries with the rows that expire.
func (c *checker) expiries() error {
	x, err := c.Data.Raw.CheckIndex(c.ctx)
	if err != nil {
		return err
	}
	rows, err := c.Data.Raw.Expiring()
	if err != nil {
		return err
	}
	missing := rows - (x.Entries - x.Stale)
	if x.Stale == 0 && missing == 0 {
		return nil
	}
	f := Finding{Kind: ExpiryWrong, Where: "index of expiries",
		What:   fmt.Sprintf("%d rows that expire are not in it, %d of its entries are of none", missing, x.Stale),
		Remedy: "--repair makes it again"}
	if c.Repair && c.noRepair == "" {
		if _, err := c.Data.Raw.Reindex(c.ctx); err != nil {
			return err
		}
		f.Fixed, f.Remedy = true, "repaired"
	}
	c.record(f)
	return nil
}
