package event_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
)

var rewriteEnvelopes = flag.Bool("rewrite-envelopes", false, "write the golden envelopes anew; only for a new version of an event")

// The envelopes are a contract: they change only with a version of the event.
func TestGoldenEnvelopes(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_000_000, time.FixedZone("", 3600))
	md := func(typ string, v, m int64) *eventv1.EventMetadata {
		return event.NewMetadata(typ, "evt_1", "chat_1", at, event.Origin{Generation: "g1", Producer: "srv_1"},
			event.Cause{Actor: "alice", Trace: "t1", Correlation: "c1", Causation: "r1"}, event.Position{Version: v, MembershipVersion: m})
	}
	ts := timestamppb.New(at)
	for _, e := range []event.Event{
		&eventv1.ChatCreated{
			Metadata: md(event.TypeChatCreated, 1, 1), ChatId: "chat_1", ChatType: eventv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea <&> ☕",
			Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE, CreatedBy: "alice", MemberCount: 2, InitialMembers: []string{"alice", "bob"}, CreatedAt: ts,
			History: eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED,
		},
		&eventv1.ChatUpdated{
			Metadata: md(event.TypeChatUpdated, 4, 3), ChatId: "chat_1", ChatType: eventv1.ChatType_CHAT_TYPE_GROUP, Name: "Coffee",
			Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE, History: eventv1.HistoryMode_HISTORY_MODE_ALL, CreatedBy: "alice", MemberCount: 2,
			UpdatedBy: "bob", CreatedAt: ts, UpdatedAt: ts,
		},
		&eventv1.MembershipChanged{
			Metadata: md(event.TypeMembershipChanged, 2, 2), ChatId: "chat_1", UserId: "bob",
			ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED, Role: eventv1.MemberRole_MEMBER_ROLE_ADMIN,
			ChangedBy: "alice", MemberCountAfter: 2, ChangedAt: ts, JoinedSequence: 1 << 60,
		},
		&eventv1.MessagePersisted{
			Metadata: md(event.TypeMessagePersisted, 3, 2), MessageId: "msg_1", ChatId: "chat_1", Sequence: 1, SenderId: "alice", Content: "Hello\n\"Bob\"",
			ContentType: eventv1.ContentType_CONTENT_TYPE_TEXT, ClientMessageId: "5b1f7f0c-8f5b-4d53-9d0f-0d4c5a5f1a2b", CreatedAt: ts,
		},
	} {
		got, err := event.MarshalEnvelope(e)
		if err != nil {
			t.Fatal(err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, got, "", "  "); err != nil {
			t.Fatal(err)
		}
		indented.WriteByte('\n')
		path := filepath.Join("testdata", event.TypeOf(e)+".json")
		if *rewriteEnvelopes {
			if err := os.WriteFile(path, indented.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(want, indented.Bytes()) {
			t.Errorf("%s is\n%s\nwant\n%s (%v)", path, indented.Bytes(), want, err)
		}
	}
}
