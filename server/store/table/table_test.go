package table

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
)

var appendRows = flag.Bool("append-released-rows", false,
	"add the rows that this head writes to testdata/released.jsonl")

const releasedFile = "testdata/released.jsonl"

// read decodes a stored row to the struct of its table.
func read(r store.Row) (any, error) {
	pk, sk, it := r.Key.PK, r.Key.SK, r.Item
	switch r.Key.Table {
	case store.Users:
		return UserFrom(pk, it), nil
	case store.Chats:
		return ChatFrom(pk, it), nil
	case store.ChatCounters:
		return HeadFrom(pk, it), nil
	case store.ChatMemberships:
		return MembershipFrom(pk, sk, it), nil
	case store.DeliveryState:
		if user, ok := strings.CutSuffix(pk, leftPartition); ok && strings.HasPrefix(sk, leftLog) {
			return LeftLogFrom(user, r), nil
		} else if ok {
			return UserChatFrom(user, sk, it), nil
		}
		return UserChatFrom(pk, sk, it), nil
	case store.Messages:
		return MessageFrom(r)
	case store.Events:
		return EventFrom(r)
	case store.Outbox:
		return OutboxFrom(r)
	case store.IdempotencyKeys:
		return RequestFrom(pk, it), nil
	case store.DirectChatIndex:
		return DirectIndexFrom(it), nil
	case store.PendingMembers:
		return PendingFrom(pk, it), nil
	case store.ConsumerAttempts:
		switch {
		case sk == "owner":
			return OwnershipFrom(it), nil
		case pk == ParkedPartition:
			return ParkedFrom(it), nil
		}
		return AttemptsFrom(r)
	case store.DeadLetters:
		return DeadLetterFrom(it), nil
	case store.Audit:
		return AuditFrom(it), nil
	case store.SearchEvents:
		return SearchEventsFrom(r)
	case store.Topics:
		return readTopics(r)
	case store.Subscriptions:
		return CursorFrom(it), nil
	case store.Leases:
		if _, ok := WorkerName(r.Key); ok {
			return WorkerFrom(it), nil
		}
		return LeaseFrom(it), nil
	case store.Notifications, store.Projections:
		return readProjections(r), nil
	case store.Meta:
		return readMeta(r), nil
	}
	return nil, nil
}

func payload() []byte {
	md := event.Metadata{
		Type: event.TypeMessagePersisted, ID: "evt_01", ChatID: "chat_01", At: time.UnixMilli(1_700_000_000_123),
		Origin: event.Origin{Generation: "g1", Producer: "srv_01"},
		Cause:  event.Cause{Actor: "user_01", Causation: "c-01"}.Complete("evt_01"), Version: 7, MembershipVersion: 3,
	}.Proto()
	b, err := event.Marshal(&eventv1.MessagePersisted{
		Metadata: md, MessageId: "msg_01", ChatId: "chat_01", Sequence: 4, SenderId: "user_01", Content: "hello",
		ContentType: eventv1.ContentType_CONTENT_TYPE_TEXT, ClientMessageId: "c-01",
		CreatedAt: timestamppb.New(time.UnixMilli(1_700_000_000_123)),
	})
	if err != nil {
		panic(err)
	}
	return b
}

// samples has a row of every table with every field set, and of some the least
// that there is.
func samples() []store.Row {
	const at = 1_700_000_000_123
	row := func(k store.Key, it store.Item) store.Row { return store.Row{Key: k, Item: it} }
	o := Outbox{Shard: 7, AggregateID: "chat_01", FirstVersion: 12, Count: 3, CreatedAt: at}
	again := o
	again.Replay = true
	again.ReplayID = "ABCD2345"
	return append(append(topicSamples(), projectionSamples()...), []store.Row{
		row(UserKey("user_01"), User{CreatedAt: at, Status: Active, Chats: 7, Counted: true}.Item()),
		row(UserKey("user_02"), User{CreatedAt: at, Status: Active, Counted: true}.Item()),
		row(ChatKey("chat_01"), Chat{
			Type: Group, Name: "name", CreatedBy: "user_01", Status: Active, History: SinceJoined,
			MemberCount: 3, DirectUsers: []string{"a", "b"}, CreatedAt: at, UpdatedAt: at + 1, Version: 9,
		}.Item()),
		row(ChatKey("chat_02"), Chat{Type: Direct, CreatedBy: "user_01", Status: Active, History: All, MemberCount: 2,
			Version: 2}.Item()),
		row(HeadKey("chat_01"), Head{
			Version: 9, Sequence: 4, MembershipVersion: 5, ChangedAt: at, LastAt: at - 1, LastSequence: 4, LastSender: "user_01",
			LastPreview: "hello",
		}.Item()),
		row(HeadKey("chat_02"), Head{Version: 1, MembershipVersion: 1, ChangedAt: at, LastAt: at}.Item()),
		row(MembershipKey("chat_01", "user_01"),
			Membership{Role: Admin, JoinedAt: at, JoinedSequence: 2, JoinedVersion: 5, Version: 8}.Item()),
		row(UserChatKey("user_01", "chat_01"), UserChat{
			History: SinceJoined, JoinedSequence: 2, JoinedVersion: 5, ReadSequence: 4, DeliveredSequence: 3,
			MutedUntil: at, Archived: true, LeftVersion: 9, ChangedAt: at, ExpiresAt: at / 1000, Role: Admin,
			Revision: FirstRevision(5) + 3, Peer: "user_02", PeerReadSequence: 2, OwnCount: 2, OwnLast: 7,
			OwnFrom: 4,
		}.Item()),
		row(LeftKey("user_01", "chat_03"), UserChat{History: SinceJoined, JoinedSequence: 2, JoinedVersion: 5, LeftVersion: 9,
			ChangedAt: at, ExpiresAt: at / 1000}.Item()),
		row(LeftLogKey("user_01", at, "chat_03"),
			UserChat{History: SinceJoined, JoinedSequence: 2, JoinedVersion: 5, LeftVersion: 9, ChangedAt: at,
				ExpiresAt: at / 1000}.Item()),
		row(UserChatKey("user_02", "chat_01"), UserChat{History: All, ChangedAt: at}.Item()),
		row(MessageKey("chat_01", 4), Message{
			MessageID: "msg_01", SenderID: "user_01", Content: "hello", ContentType: 1, ClientMessageID: "c-01", CreatedAt: at,
			Version: 7, ServiceID: "svc-01",
		}.Item()),
		row(EventKey("chat_01", 7), Event{ChatID: "chat_01", EventID: "evt_01", Type: event.TypeMessagePersisted,
			Payload: payload()}.Item()),
		row(EventKey("chat_01", 8), Event{ChatID: "chat_01", EventID: "evt_02", Type: "NotCanonical",
			Payload: []byte{0xff}}.Item()),
		row(again.Key(), again.Item()),
		row(o.Key(), o.Item()),
		row(RequestKey(Scope("send", "user_01", "chat_01", "c-01")), Request{
			Scope: Scope("send", "user_01", "chat_01", "c-01"),
			Hash:  []byte{1, 2, 255}, ChatID: "chat_01", MessageID: "msg_01", Sequence: 4, Version: 7, CreatedAt: at,
			ExpiresAt: at / 1000,
		}.Item()),
		row(RequestKey(Scope("create", "user_01", "", "c-01")), Request{Scope: Scope("create", "user_01", "", "c-01"),
			Hash: []byte{1, 2, 255}, ChatID: "chat_01", Version: 1, CreatedAt: at, ExpiresAt: at / 1000,
		}.Item()),
		row(DirectIndexKey("user_02", "user_01"), DirectIndex{ChatID: "chat_02", CreatedAt: at}.Item()),
		row(PendingKey("chat_01"), Pending{Members: []string{"a", "b"}, CreatedBy: "user_01", CreatedAt: at, Correlation: "c",
			Causation: "evt_01", Trace: "4bf92f3577b34da6a3ce929d0e0e4736", ServiceID: "svc-01"}.Item()),
		row(AttemptsKey(AttemptsPartition("g", "t", 3), 12),
			Attempts{Offset: 12, Attempts: 2, Ends: 1, ExpiresAt: at / 1000}.Item()),
		row(OwnershipKey(AttemptsPartition("g", "t", 3)), Ownership{Consumer: "srv_01", Since: at, Alone: 13}.Item()),
		row(ParkedKey("g", "t", []byte("chat_01")), Parked{Group: "g", Topic: "t", Key: []byte("chat_01"), Failed: "t/3/12",
			Class: "permanent", Reason: "bad", Attempts: 1, At: "t.v2", Partition: 3, Last: 14, Records: 3, Bytes: 700,
			Since: at, HoldUntil: at + 1, ExpiresAt: at / 1000}.Item()),
		row(DeadLetterKey("g", "t", 3, 12),
			DeadLetter{Status: "failed", By: "ops", At: at, Result: "unknown: x", Tries: 2, ExpiresAt: at / 1000}.Item()),
		row(AuditKey(time.UnixMilli(at), "01", AuditBegun),
			Audit{At: at, By: "ops", Call: "ReplayEvents", Target: "user/a", Request: "{}", Code: "ok", Result: "{}",
				ExpiresAt: at / 1000}.Item()),
		row(AuditKey(time.UnixMilli(at), "01", AuditEnded), Audit{At: at + 1, By: "ops", Call: "ReplayEvents"}.Item()),
		row(AuditKey(time.UnixMilli(at), "02", AuditEvent),
			Audit{At: at, By: "user/a", Call: "signed_in", Target: "user/a", Code: "ok"}.Item()),
		row(SearchEventsKey("srch_01", 101),
			SearchEvents{Stream: "srch_01", First: 101, Count: 2, At: at, Events: []byte{10, 0, 10, 0},
				ExpiresAt: at / 1000}.Item()),
		row(LeaseKey("relay", 7), Lease{Holder: "srv_01", Count: 4, TotalSlots: 8, RequestedBy: "srv_02"}.Item()),
		row(WorkerKey("worker-1"), Worker{Process: "wrk_01", Count: 7, Patience: 3600 * time.Millisecond}.Item()),
		row(ClockKey(), store.NewItem(store.Attr{Name: AttrStamp, Value: store.Int(at)})),
		row(ProgressKey(store.Chats), Progress{Revision: 9, After: "chat_01", Began: at, Rows: 500, LastBegan: at - 1,
			LastRows: 700}.Item()),
	}...)
}

// released is a line of the corpus: a row as some release wrote it, and what it
// means.
type released struct {
	Table, PK, SK string
	Item          map[string]map[string]any // name → kind → value, as DynamoDB writes it
	Row           map[string]any
}

func line(t *testing.T, r store.Row) released {
	t.Helper()
	out := released{Table: string(r.Key.Table), PK: r.Key.PK, SK: r.Key.SK, Item: map[string]map[string]any{}}
	for _, a := range r.Item {
		switch a.Value.Kind() {
		case store.KindString:
			out.Item[a.Name] = map[string]any{"S": a.Value.Str()}
		case store.KindInt:
			out.Item[a.Name] = map[string]any{"N": a.Value.Int64()}
		case store.KindBytes:
			out.Item[a.Name] = map[string]any{"B": base64.StdEncoding.EncodeToString(a.Value.Blob())}
		case store.KindBool:
			out.Item[a.Name] = map[string]any{"BOOL": a.Value.True()}
		case store.KindList:
			out.Item[a.Name] = map[string]any{"L": a.Value.Strings()}
		}
	}
	v, err := read(r)
	if err != nil {
		t.Fatal(err)
	}
	out.Row = fields(t, v)
	return out
}

func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (l released) row(t *testing.T) store.Row {
	t.Helper()
	var attrs []store.Attr
	for name, kinds := range l.Item {
		for kind, v := range kinds {
			a := store.Attr{Name: name}
			switch kind {
			case "S":
				a.Value = store.String(v.(string))
			case "N":
				a.Value = store.Int(int64(v.(float64)))
			case "B":
				b, err := base64.StdEncoding.DecodeString(v.(string))
				if err != nil {
					t.Fatal(err)
				}
				a.Value = store.Bytes(b)
			case "BOOL":
				a.Value = store.Bool(v.(bool))
			case "L":
				var list []string
				for _, s := range v.([]any) {
					list = append(list, s.(string))
				}
				a.Value = store.List(list)
			}
			attrs = append(attrs, a)
		}
	}
	return store.Row{Key: store.Key{Table: store.Table(l.Table), PK: l.PK, SK: l.SK}, Item: store.NewItem(attrs...)}
}

// Every row that a release wrote means today what it meant then. A field that came
// later may be anything.
func TestReleasedRows(t *testing.T) {
	old, err := os.ReadFile(releasedFile)
	if err != nil && !*appendRows {
		t.Fatal(err)
	}
	if *appendRows {
		var buf bytes.Buffer
		for _, r := range samples() {
			b, err := json.Marshal(line(t, r))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(old, b) {
				buf.Write(append(b, '\n'))
			}
		}
		old = append(old, buf.Bytes()...)
		if err := os.WriteFile(releasedFile, old, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tables := map[string]bool{}
	for text := range strings.Lines(string(old)) {
		var l released
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		tables[l.Table] = true
		r := l.row(t)
		if err := r.Key.Validate(); err != nil {
			t.Error(err)
		}
		v, err := read(r)
		if err != nil {
			t.Errorf("%s: %v", r.Key, err)
			continue
		}
		got := fields(t, v)
		for name, want := range l.Row {
			if !reflect.DeepEqual(got[name], want) {
				t.Errorf("%s: %s is %v, was %v", r.Key, name, got[name], want)
			}
		}
	}
	for _, r := range samples() {
		if !tables[string(r.Key.Table)] {
			t.Errorf("no released row of %s", r.Key.Table)
		}
		b, err := json.Marshal(line(t, r))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(old, b) {
			t.Errorf("the row of %s is not in the corpus: after a change of the layout run with -append-released-rows, which keeps the older rows", r.Key)
		}
	}
}

// Every field of every row comes back, and rows are valid writes with sorted
// attributes.
func TestRowsAreComplete(t *testing.T) {
	seen := map[store.Table]bool{}
	for _, r := range samples() {
		w := store.Write{Op: store.OpPut, Key: r.Key, Item: r.Item}
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
		v, err := read(r)
		if err != nil || v == nil || seen[r.Key.Table] {
			continue
		}
		seen[r.Key.Table] = true
		rv := reflect.ValueOf(v)
		for i := range rv.NumField() {
			if rv.Field(i).IsZero() {
				t.Errorf("%s: field %s is lost", r.Key, rv.Type().Field(i).Name)
			}
		}
	}
}

// A request's row names its chat only where the scope does not.
func TestChatOfARequest(t *testing.T) {
	for _, c := range []struct {
		scope string
		chat  string
		named bool
	}{
		{Scope("send", "u", "chat_1", "k"), "chat_1", false}, {Scope("create", "u", "", "k"), "chat_1", true},
		{Scope("send", "u", "chat_1", "k"), "chat_2", true}, {Scope("create", "u", "", "k"), "", false},
		{"nonsense", "chat_1", true}, {"nonsense", "", false},
	} {
		it := Request{Scope: c.scope, ChatID: c.chat, Hash: []byte{1}}.Item()
		if named := it.Get("chat_id").Kind() != 0; named != c.named {
			t.Errorf("%s of %q: the row names the chat: %v", c.scope, c.chat, named)
		}
		if got := RequestFrom(c.scope, it); got.ChatID != c.chat {
			t.Errorf("%s of %q reads as %q", c.scope, c.chat, got.ChatID)
		}
	}
}

func TestHeadUpdate(t *testing.T) {
	old := Head{Version: 1, LastPreview: "old", LastSender: "a", LastSequence: 1}.Item()
	old = append(old, store.Attr{Name: "zz_of_a_newer_release", Value: store.Int(1)})
	for _, h := range []Head{{ChatID: "c", Version: 2, LastSender: "b", LastSequence: 2},
		{ChatID: "c", Version: 2, LastSender: "b", LastSequence: 2, LastPreview: "new"}} {
		next, err := store.Apply(h.Update(), old)
		if err != nil || HeadFrom("c", next) != h || next.Get("zz_of_a_newer_release").Int64() != 1 {
			t.Errorf("%+v became %+v (%v)", h, HeadFrom("c", next), err)
		}
	}
}

func TestKeys(t *testing.T) {
	// L-009, L-010
	if k := DirectIndexKey("user_b", "user_B"); k.PK != "user_B#user_b" || k != DirectIndexKey("user_B", "user_b") {
		t.Error(k)
	}
	if k := EventKey("c", 42); k.SK != "00000000000000000042" {
		t.Error(k)
	}
	if k := (Outbox{Shard: 3, AggregateID: "c", FirstVersion: 9}).Key(); k.PK != "03" || k.SK != "c#00000000000000000009" {
		t.Error(k)
	}
	for _, bad := range []string{"", "1", "0000000000000000000x", "-0000000000000000001", "+0000000000000000001",
		"000000000000000000001", "99999999999999999999"} {
		if n, err := parseNumber(bad); err == nil {
			t.Errorf("%q is %d", bad, n)
		}
	}
	for _, bad := range []store.Key{{PK: "03", SK: "c"}, {PK: "03", SK: "c#1"}, {PK: "x", SK: "c#00000000000000000009"},
		{PK: "3", SK: "c#00000000000000000009"}} {
		if o, err := OutboxFrom(store.Row{Key: bad}); err == nil {
			t.Errorf("%v is %+v", bad, o)
		}
	}
}

func FuzzNumber(f *testing.F) {
	f.Add(int64(0), int64(1))
	f.Fuzz(func(t *testing.T, a, b int64) {
		a, b = max(a, -(a+1)), max(b, -(b+1)) // not negative
		n, err := parseNumber(Number(a))
		if err != nil || n != a {
			t.Fatal(a, n, err)
		}
		if (a < b) != (Number(a) < Number(b)) {
			t.Fatalf("%d and %d are not in order", a, b)
		}
	})
}

func FuzzPreview(f *testing.F) {
	f.Add(strings.Repeat("ü", 100))
	f.Add(strings.Repeat("\xff", 200))
	f.Fuzz(func(t *testing.T, s string) {
		p := Preview(s)
		if len(p) > MaxPreview || !strings.HasPrefix(s, p) || (utf8.ValidString(s) && !utf8.ValidString(p)) ||
			(len(s) <= MaxPreview && p != s) {
			t.Fatalf("%q", p)
		}
	})
}

// Whatever a payload is, it comes back byte for byte.
func FuzzCondense(f *testing.F) {
	f.Add(payload(), "chat_01", "evt_01", event.TypeMessagePersisted)
	f.Add([]byte{0x0b, 0x00}, "abcd", "", "")
	f.Fuzz(func(t *testing.T, b []byte, chatID, eventID, typ string) {
		e := Event{ChatID: chatID, Version: 1, EventID: eventID, Type: typ, Payload: b}
		got, err := EventFrom(store.Row{Key: EventKey(chatID, 1), Item: e.Item()})
		if err != nil || !bytes.Equal(got.Payload, b) || got.EventID != eventID || got.Type != typ {
			t.Fatalf("%x came back as %x (%v)", b, got.Payload, err)
		}
		_, _ = expand(string(b), chatID, eventID, typ) // damaged rows are errors
	})
}

// Whatever our encoder makes is compressed: a repeated value is stored once.
func TestCondense(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		word := rapid.SampledFrom([]string{"", "a", "chat_01", "evt_01", "user_01", "user_02", "x-1-2-3-4",
			strings.Repeat("z", 300)})
		at := rapid.Int64Range(0, 1<<42).Draw(rt, "at")
		md := event.Metadata{
			Type: event.TypeChatCreated, ID: "evt_01", ChatID: "chat_01", At: time.UnixMilli(at),
			Origin: event.Origin{Generation: word.Draw(rt, "g")},
			Cause:  event.Cause{Actor: word.Draw(rt, "actor"), Trace: word.Draw(rt, "trace")}.Complete("evt_01"), Version: at,
		}.Proto()
		e := &eventv1.ChatCreated{
			Metadata: md, ChatId: "chat_01", Name: word.Draw(rt, "name"), CreatedBy: word.Draw(rt, "by"), MemberCount: 3,
			InitialMembers: rapid.SliceOfN(word, 0, 50).Draw(rt, "members"), CreatedAt: timestamppb.New(time.UnixMilli(at)),
		}
		b, err := event.Marshal(e)
		if err != nil {
			rt.Fatal(err)
		}
		row := Event{ChatID: "chat_01", Version: 1, EventID: "evt_01", Type: event.TypeChatCreated, Payload: b}
		body := row.Item().Get("body")
		if body.Kind() == 0 || strings.Contains(body.Str(), "chat_01") || strings.Contains(body.Str(), "evt_01") {
			rt.Fatalf("%q", body.Str())
		}
		got, err := EventFrom(store.Row{Key: EventKey("chat_01", 1), Item: row.Item()})
		if err != nil || !bytes.Equal(got.Payload, b) {
			rt.Fatal(err)
		}
		back, err := event.Unmarshal(got.Type, got.Payload)
		if err != nil || !proto.Equal(back, e) {
			rt.Fatal(back, err)
		}
	})
}
