package check_test

import (
	"encoding/binary"
	"testing"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
)

type damage struct {
	name string
	do   func(t testing.TB, h *fixture, o *backend.Offline)
	kind check.Kind
	// repaired is the kind that a repair finds, if it is another one.
	repaired check.Kind
	says     string
	stays    bool // it cannot be derived
	differ   bool // the repaired rows may be others than before
	backup   bool // the repair has one from before the damage
}

var damages = []damage{
	{name: "head missing", kind: check.HeadWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.HeadKey(h.group))) }},
	{name: "head behind", kind: check.HeadWrong, says: "version is 3, its events say",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.HeadKey(h.group), "version", store.Int(3))
		}},
	{name: "head's messages behind", kind: check.HeadWrong, says: "sequence is 1, its events say",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.HeadKey(h.group), "sequence", store.Int(1))
		}},
	{name: "head ahead", kind: check.HeadAhead, says: "it is at version 999", stays: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.HeadKey(h.group), "version", store.Int(999))
		}},
	{name: "head's preview", kind: check.HeadWrong, says: "last_preview",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.HeadKey(h.direct), "last_preview", store.String("never said"))
		}},
	{name: "head's membership version", kind: check.HeadWrong, says: "membership_version is 1",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.HeadKey(h.group), "membership_version", store.Int(1))
		}},
	{name: "head unreadable", kind: check.HeadWrong, says: "cannot be read",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { garbage(t, o, table.HeadKey(h.group)) }},
	{name: "chat missing", kind: check.ChatWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.ChatKey(h.group))) }},
	{name: "count of members", kind: check.ChatWrong, says: "member_count is 77, its events say 5",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.ChatKey(h.group), "member_count", store.Int(77))
		}},
	{name: "name of a chat", kind: check.ChatWrong, says: `name is "x", its events say "everybody"`,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.ChatKey(h.group), "name", store.String("x"))
		}},
	{name: "member missing", kind: check.MemberWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.MembershipKey(h.group, "frank")))
		}},
	{name: "role of a member", kind: check.MemberWrong, says: `role is "owner", its events say "admin"`,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.MembershipKey(h.group, "carol"), "role", store.String("owner"))
		}},
	{name: "member too many", kind: check.MemberWrong, says: "not a member",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.MembershipKey(h.group, "gus"), table.Membership{Role: table.Member}.Item()))
		}},
	{name: "member unreadable", kind: check.MemberWrong, says: "role is",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			garbage(t, o, table.MembershipKey(h.group, "bob"))
		}},
	{name: "user's row missing", kind: check.UserChatWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.UserChatKey("bob", h.group)))
		}},
	{name: "user's row unreadable", kind: check.UserChatWrong, says: "cannot be read",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			garbage(t, o, table.UserChatKey("bob", h.group))
		}},
	{name: "user's role", kind: check.UserChatWrong, says: `role is "member", its events say "admin"`,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("carol", h.group), "role", store.String("member"))
		}},
	{name: "user's beginning", kind: check.UserChatWrong, says: "joined_sequence is 0",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("dora", h.group), "joined_sequence", store.Int(0))
		}},
	{name: "read more than there is", kind: check.UserChatWrong, says: "read_sequence is 5000", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "read_sequence", store.Int(5000))
		}},
	{name: "more own messages than there are", kind: check.UserChatWrong, says: "own_count is 500", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "own_count", store.Int(500))
		}},
	{name: "own messages forgotten", kind: check.UserChatWrong, says: "own_last is 0", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "own_last", store.Int(0))
		}},
	{name: "delivered more than there is", kind: check.UserChatWrong, says: "delivered_sequence is 5000", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "delivered_sequence", store.Int(5000))
		}},
	{name: "another person than that of the chat", kind: check.UserChatWrong,
		says: `peer is "carol", its events say "bob"`,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "peer", store.String("carol"))
		}},
	{name: "told of more than there is", kind: check.UserChatWrong, says: "peer_read_sequence is 5000", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserChatKey("alice", h.direct), "peer_read_sequence", store.Int(5000))
		}},
	{name: "user's row of a direct chat missing", kind: check.UserChatWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.UserChatKey("bob", h.direct)))
		}},
	{name: "a chat of others in a user's list", kind: check.UserChatWrong, says: "not a member of the chat",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.UserChatKey("gus", h.group),
				table.UserChat{History: table.All, JoinedVersion: 1, ChangedAt: 1}.Item()))
		}},
	{name: "number of a user's chats", kind: check.UserWrong, says: "chats is 9, the user is in 3",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.UserKey("alice"), "chats", store.Int(9))
		}},
	{name: "user missing", kind: check.UserWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.UserKey("carol"))) }},
	{name: "user unreadable", kind: check.UserWrong, says: "cannot be read",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { garbage(t, o, table.UserKey("carol")) }},
	{name: "chat that was left", kind: check.LeftWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.LeftKey("erik", h.group)))
		}},
	{name: "message missing", kind: check.MessageWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.MessageKey(h.direct, 3))) }},
	{name: "last message missing", kind: check.MessageWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.MessageKey(h.direct, 10))) }},
	{name: "message altered", kind: check.MessageWrong, says: "content is another",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.MessageKey(h.direct, 3), "content", store.String("never said"))
		}},
	{name: "message unreadable", kind: check.MessageWrong, says: "cannot be read",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { garbage(t, o, table.MessageKey(h.direct, 3)) }},
	{name: "message without event", kind: check.HeadAhead, says: "1 messages from this one on have no events", stays: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.MessageKey(h.direct, 11), table.Message{MessageID: "msg_x", Content: "x"}.Item()))
		}},
	{name: "event missing", kind: check.EventWrong, backup: true, says: "events of the chat, from version 5 to 5",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.EventKey(h.direct, 5))) }},
	{name: "event unreadable", kind: check.EventWrong, backup: true, says: "events of the chat, from version 5 to 5",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { garbage(t, o, table.EventKey(h.direct, 5)) }},
	{name: "event and message missing", kind: check.EventWrong, backup: true,
		says: "events of the chat, from version 5 to 6",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.EventKey(h.direct, 5)), del(table.EventKey(h.direct, 6)), del(table.MessageKey(h.direct, 4)))
		}},
	{name: "last event missing", kind: check.HeadAhead, repaired: check.EventWrong, backup: true, says: "chat",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.EventKey(h.direct, 12))) }},
	{name: "event missing, without a backup", kind: check.EventWrong, says: "from number 3 on, 1 are there", differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.EventKey(h.direct, 5)))
		}},
	{name: "last event missing, without a backup", kind: check.HeadAhead, repaired: check.EventWrong, says: "1 messages",
		differ: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.EventKey(h.direct, 12)))
		}},
	{name: "outbox row missing", kind: check.EventUnpublished, says: "3 events from version",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			page, err := o.Store.Query(t.Context(),
				store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(h.group)), From: h.group, To: h.group + "~"})
			testkit.Must(t, err)
			for _, r := range page.Rows {
				write(t, o, del(r.Key))
			}
		}, differ: true},
	{name: "outbox row in another shard", kind: check.OutboxWrong, says: "no relay publishes the row",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			r := h.waiting(t, o)
			moved := r.Key
			moved.PK = table.ShardKey((event.Shard(h.group) + 1) % 64)
			write(t, o, del(r.Key), put(moved, r.Item))
		}, differ: true},
	{name: "outbox row of nothing", kind: check.OutboxWrong, says: "the chat has", stays: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			r := table.Outbox{Shard: event.Shard(h.group), AggregateID: h.group, FirstVersion: 900, Count: 2, CreatedAt: 1}
			write(t, o, put(r.Key(), r.Item()))
		}},
	{name: "pair missing", kind: check.PairWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(table.DirectIndexKey("alice", "bob")))
		}},
	{name: "pair of others", kind: check.PairWrong, says: "not these two people's",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.DirectIndexKey("carol", "dora"), table.DirectIndex{ChatID: h.direct}.Item()))
		}},
	{name: "pending missing", kind: check.PendingWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) { write(t, o, del(table.PendingKey(h.young))) }},
	{name: "pending too many", kind: check.PendingWrong, says: "no member is on the way in",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.PendingKey(h.group), table.Pending{Members: []string{"gus"}}.Item()))
		}},
	{name: "pending of others", kind: check.PendingWrong, says: "members are [gus]",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, table.PendingKey(h.young), "members", store.List([]string{"gus"}))
		}},
	{name: "request missing", kind: check.RequestWrong, says: "the row is missing",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, del(h.request(t, o)))
		}},
	{name: "request of another message", kind: check.RequestWrong, says: "message_id is",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, h.request(t, o), "message_id", store.String("msg_other"))
		}},
	{name: "request of another content", kind: check.RequestWrong, says: "hash is not the message's",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, h.request(t, o), "hash", store.Bytes(make([]byte, 32)))
		}},
	{name: "request of another chat", kind: check.RequestWrong, says: "chat_id is",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			set(t, o, h.request(t, o), "chat_id", store.String("chat_other"))
		}},
	{name: "request without a shape", kind: check.RequestWrong, says: "not the row of a request", stays: true,
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			write(t, o, put(table.RequestKey("nonsense"), table.Request{ExpiresAt: 1 << 40}.Item()))
		}},
	{name: "last id of the registry", kind: check.SchemaWrong, says: "the last id is 1",
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			set(t, o, table.SchemaCounterKey(), table.AttrLastID, store.Int(1))
		}},
	{name: "count of a subject", kind: check.SchemaWrong, says: "the row says 0, 0 and 0", differ: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			write(t, o, del(table.SchemaSubjectKey(subject(t, o).PK)))
		}},
	{name: "schema unreadable", kind: check.SchemaWrong, says: "cannot be read", stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			set(t, o, subject(t, o), "descriptor", store.Bytes([]byte("x")))
		}},
	{name: "index of expiries", kind: check.ExpiryWrong,
		says: "1 rows that expire are not in it, 1 of its entries are of none",
		do: func(t testing.TB, h *fixture, o *backend.Offline) {
			key := h.request(t, o)
			it, err := o.Store.Get(t.Context(), key, store.Strong)
			testkit.Must(t, err)
			at := it.Get(store.ExpiresAtField).Int64()
			testkit.Must(t, o.Store.DB().Delete(embedded.ExpiryKey(nil, at, embedded.ItemKey(nil, key)), nil))
			testkit.Must(t, o.Store.DB().Set(embedded.ExpiryKey(nil, at+1, embedded.ItemKey(nil, key)), nil, nil))
		}},
	{name: "a row of no meaning", kind: check.RowUnreadable, says: "not an encoding", stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			garbage(t, o, store.Key{Table: store.DeadLetters, PK: "fanout", SK: "x"})
		}},
	{name: "batch of a topic", kind: check.TopicWrong, stays: true,
		says: "partition 1/3, batch that ends with position 5: store: corrupt data: batch is too short",
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: topicRecord(1, 5), Value: []byte("x")})
		}},
	{name: "batch of a topic missing", kind: check.TopicWrong, stays: true,
		says: "it begins with 6, position 4 is expected",
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: topicRecord(1, 5), Until: topicRecord(1, 6)})
		}},
	{name: "all batches of a topic missing", kind: check.TopicWrong, stays: true,
		says: "it ends with position 2, there were positions up to 10",
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: topicRecord(1, 0), Until: topicRecord(2, 0)})
		}},
	{name: "producer of a topic", kind: check.TopicWrong, says: `producer "p": store: corrupt data`, stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: append(topicRecord(2, 0)[:11], 1, 'p', 0)})
		}},
	{name: "head of a topic", kind: check.TopicWrong, says: "head of partition cannot be read", stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: topicRecord(0, 0)[:11], Value: []byte("x")})
		}},
	{name: "a record of nothing", kind: check.TopicWrong, says: "not a key of a log", stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			record(t, o, store.Record{Key: []byte("x"), Value: []byte("x")})
		}},
	{name: "a key of no table", kind: check.KeyUnknown, says: "1 keys", stays: true,
		do: func(t testing.TB, _ *fixture, o *backend.Offline) {
			testkit.Must(t, o.Store.DB().Set([]byte{0x01, 0x7f, 'x'}, nil, nil))
		}},
}

// topicRecord is the key of a record of topicLog: of a kind and a position.
func topicRecord(kind byte, position uint64) []byte {
	key := binary.BigEndian.AppendUint64(nil, topicLog.Topic)
	key = append(binary.BigEndian.AppendUint16(key, uint16(topicLog.Number)), kind)
	return binary.BigEndian.AppendUint64(key, position)
}

func record(t testing.TB, o *backend.Offline, r store.Record) {
	t.Helper()
	wait, err := o.Records.Commit(t.Context(), []store.Record{r})
	testkit.Must(t, err)
	testkit.Must(t, wait())
}
