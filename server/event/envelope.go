package event

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// envelope is the JSON form of an event (ADR-011 §3.3, K-075…K-082): the metadata,
// and the payload as an object of its own.
type envelope struct {
	EventID       string `json:"event_id"`
	EventType     string `json:"event_type"`
	EventVersion  int32  `json:"event_version"`
	EventTime     string `json:"event_time"`
	Generation    string `json:"generation"`
	PartitionKey  string `json:"partition_key"`
	ProducerID    string `json:"producer_id"`
	TraceID       string `json:"trace_id"`
	ActorID       string `json:"actor_id"`
	CorrelationID string `json:"correlation_id"`
	CausationID   string `json:"causation_id"`
	Version       int64  `json:"version"`
	Membership    int64  `json:"membership_version"`
	Payload       any    `json:"payload"`
}

type chatCreated struct {
	ChatID         string   `json:"chat_id"`
	ChatType       string   `json:"chat_type"`
	Name           string   `json:"name"`
	Status         string   `json:"status"`
	CreatedBy      string   `json:"created_by"`
	MemberCount    int32    `json:"member_count"`
	InitialMembers []string `json:"initial_members"`
	CreatedAt      string   `json:"created_at"`
	History        string   `json:"history"`
}

type chatUpdated struct {
	ChatID      string `json:"chat_id"`
	ChatType    string `json:"chat_type"`
	Name        string `json:"name"`
	Status      string `json:"status"`
	History     string `json:"history"`
	CreatedBy   string `json:"created_by"`
	MemberCount int32  `json:"member_count"`
	UpdatedBy   string `json:"updated_by"`
	CreatedAt   string `json:"created_at"`
	UpdatedAt   string `json:"updated_at"`
}

type membershipChanged struct {
	ChatID           string `json:"chat_id"`
	UserID           string `json:"user_id"`
	ChangeType       string `json:"change_type"`
	Role             string `json:"role"`
	ChangedBy        string `json:"changed_by"`
	MemberCountAfter int32  `json:"member_count_after"`
	ChangedAt        string `json:"changed_at"`
	JoinedSequence   int64  `json:"joined_sequence"`
}

type messagePersisted struct {
	MessageID       string `json:"message_id"`
	ChatID          string `json:"chat_id"`
	Sequence        int64  `json:"sequence"`
	SenderID        string `json:"sender_id"`
	Content         string `json:"content"`
	ContentType     string `json:"content_type"`
	ClientMessageID string `json:"client_message_id"`
	CreatedAt       string `json:"created_at"`
}

// MarshalEnvelope writes the JSON envelope of an event: the one place that knows
// its form. Times are RFC 3339 in UTC with milliseconds, enums lower case without
// their prefix.
func MarshalEnvelope(e Event) ([]byte, error) {
	md := e.GetMetadata()
	env := envelope{
		EventID: md.GetEventId(), EventType: md.GetEventType(), EventVersion: md.GetEventVersion(), EventTime: stamp(md.GetEventTime()),
		Generation: md.GetGeneration(), PartitionKey: md.GetPartitionKey(), ProducerID: md.GetProducerId(), TraceID: md.GetTraceId(),
		ActorID: md.GetActorId(), CorrelationID: md.GetCorrelationId(), CausationID: md.GetCausationId(),
		Version: md.GetVersion(), Membership: md.GetMembershipVersion(),
	}
	switch e := e.(type) {
	case *eventv1.ChatCreated:
		env.Payload = chatCreated{
			e.GetChatId(), enum("CHAT_TYPE_", e.GetChatType()), e.GetName(), enum("CHAT_STATUS_", e.GetStatus()), e.GetCreatedBy(),
			e.GetMemberCount(), append([]string{}, e.GetInitialMembers()...), stamp(e.GetCreatedAt()), enum("HISTORY_MODE_", e.GetHistory()),
		}
	case *eventv1.ChatUpdated:
		env.Payload = chatUpdated{
			e.GetChatId(), enum("CHAT_TYPE_", e.GetChatType()), e.GetName(), enum("CHAT_STATUS_", e.GetStatus()), enum("HISTORY_MODE_", e.GetHistory()),
			e.GetCreatedBy(), e.GetMemberCount(), e.GetUpdatedBy(), stamp(e.GetCreatedAt()), stamp(e.GetUpdatedAt()),
		}
	case *eventv1.MembershipChanged:
		env.Payload = membershipChanged{
			e.GetChatId(), e.GetUserId(), enum("MEMBERSHIP_CHANGE_TYPE_", e.GetChangeType()), enum("MEMBER_ROLE_", e.GetRole()),
			e.GetChangedBy(), e.GetMemberCountAfter(), stamp(e.GetChangedAt()), e.GetJoinedSequence(),
		}
	case *eventv1.MessagePersisted:
		env.Payload = messagePersisted{
			e.GetMessageId(), e.GetChatId(), e.GetSequence(), e.GetSenderId(), e.GetContent(), enum("CONTENT_TYPE_", e.GetContentType()),
			e.GetClientMessageId(), stamp(e.GetCreatedAt()),
		}
	default:
		return nil, fmt.Errorf("event: no envelope for %T", e)
	}
	return json.Marshal(env)
}

func stamp(t *timestamppb.Timestamp) string {
	return t.AsTime().UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

func enum(prefix string, v fmt.Stringer) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), prefix))
}
