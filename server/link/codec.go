package link

import (
	"fmt"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// requests are the messages that other processes send; each is validated.
var requests = []proto.Message{
	&linkv1.SendRequest{}, &linkv1.AckRequest{}, &linkv1.ExtendRequest{}, &linkv1.SubmitRequest{},
}

// encodeEvents makes the wire form of events; payloads are the encoded events where they
// are at hand.
func encodeEvents(events []event.Event, payloads [][]byte) (out []*linkv1.Event, size int, err error) {
	for i, e := range events {
		var b []byte
		if len(payloads) == len(events) {
			b = payloads[i]
		} else if b, err = event.Marshal(e); err != nil {
			return nil, 0, fmt.Errorf("encode event: %w", err)
		}
		size += len(b)
		out = append(out, &linkv1.Event{Type: event.TypeOf(e), Payload: b})
	}
	return out, size, nil
}

func decodeEvents(list []*linkv1.Event) (out []event.Event, err error) {
	for _, w := range list {
		e, err := event.Unmarshal(w.GetType(), w.GetPayload())
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// overhead is about the size of a delivery without its events.
const overhead = 200

func encodeDelivery(d delivery.Delivery) (*linkv1.Delivery, int, error) {
	events, size, err := encodeEvents(d.Events, d.Payloads)
	return &linkv1.Delivery{
		Generation: d.Generation, ChatId: d.ChatID, Version: d.Version, MembershipVersion: d.MembershipVersion,
		Targets: d.Targets, Events: events,
	}, size + overhead, err
}

func decodeDelivery(w *linkv1.Delivery) (delivery.Delivery, error) {
	d := delivery.Delivery{
		Generation: w.GetGeneration(), ChatID: w.GetChatId(), Version: w.GetVersion(),
		MembershipVersion: w.GetMembershipVersion(), Targets: w.GetTargets(),
	}
	events, err := decodeEvents(w.GetEvents())
	// An event that this version does not know is dropped: the head of the change makes
	// the streams read it from the store.
	if err == nil {
		d.Events = events
	}
	for _, e := range d.Events {
		if e.GetChatId() != d.ChatID {
			return d, fmt.Errorf("event of %s in a delivery of %s", e.GetChatId(), d.ChatID)
		}
	}
	return d, nil
}

func encodeEnvelope(e linkseq.Envelope, wire []*linkv1.Delivery) *linkv1.SendRequest {
	req := &linkv1.SendRequest{From: e.From, Generation: e.Generation, Epoch: e.Epoch, Number: e.Number, Deliveries: wire,
		Bye: e.Closing}
	for _, r := range e.Receipts {
		req.Receipts = append(req.Receipts, &linkv1.Receipt{UserId: r.UserID, ChatId: r.ChatID, State: r.State})
	}
	return req
}

func decodeEnvelope(req *linkv1.SendRequest) (linkseq.Envelope, error) {
	e := linkseq.Envelope{From: req.GetFrom(), Generation: req.GetGeneration(), Epoch: req.GetEpoch(),
		Number: req.GetNumber(), Closing: req.GetBye()}
	for _, w := range req.GetDeliveries() {
		d, err := decodeDelivery(w)
		if err != nil {
			return e, err
		}
		e.Deliveries = append(e.Deliveries, d)
	}
	for _, r := range req.GetReceipts() {
		e.Receipts = append(e.Receipts, linkseq.Receipt{UserID: r.GetUserId(), ChatID: r.GetChatId(), State: r.GetState()})
	}
	return e, nil
}

func encodeExtend(user, session, stream string, until *timestamppb.Timestamp) *linkv1.ExtendRequest {
	return &linkv1.ExtendRequest{UserId: user, SessionId: session, StreamId: stream, ExpiresAt: until}
}

func encodeSend(s chat.Send) *linkv1.SubmitRequest {
	return &linkv1.SubmitRequest{UserId: s.Caller, ChatId: s.ChatID, ClientMessageId: s.ClientMessageID,
		Content: s.Content, ContentType: s.ContentType, Actor: s.Cause.Actor, TraceId: s.Cause.Trace,
		CorrelationId: s.Cause.Correlation, CausationId: s.Cause.Causation,
		ServiceId: s.Cause.Service}
}

func decodeSend(w *linkv1.SubmitRequest) chat.Send {
	return chat.Send{Caller: w.GetUserId(), ChatID: w.GetChatId(), ClientMessageID: w.GetClientMessageId(),
		Content: w.GetContent(), ContentType: w.GetContentType(),
		Cause: event.Cause{Actor: w.GetActor(), Trace: w.GetTraceId(), Correlation: w.GetCorrelationId(),
			Causation: w.GetCausationId(), Service: w.GetServiceId()}, Forwarded: true}
}

func encodeSent(s chat.Sent) *linkv1.SubmitResponse {
	return &linkv1.SubmitResponse{MessageId: s.MessageID, Sequence: s.Sequence, Version: s.Version,
		CreatedAt: s.CreatedAt, Replayed: s.Replayed}
}

// EncodeCommit makes the nudge that notifies the relay in another process of a commit.
func EncodeCommit(c chat.Commit) ([]byte, error) {
	events, _, err := encodeEvents(c.Events, c.Payloads)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&linkv1.Commit{ChatId: c.ChatID, Version: c.Head.Version, Row: c.Outbox.Key.SK, Events: events})
}

// DecodeCommit reads a nudge: the part of a commit that a relay needs. Any process that can
// write to the channel may have sent it, so everything is validated, and its bytes are not
// taken for those of the store.
func DecodeCommit(generation string, b []byte) (chat.Commit, error) {
	w := &linkv1.Commit{}
	if err := proto.Unmarshal(b, w); err != nil {
		return chat.Commit{}, fmt.Errorf("nudge: %w", err)
	}
	if err := protovalidate.Validate(w); err != nil {
		return chat.Commit{}, fmt.Errorf("nudge: %w", err)
	}
	events, err := decodeEvents(w.GetEvents())
	if err != nil {
		return chat.Commit{}, fmt.Errorf("nudge: %w", err)
	}
	for i, e := range events {
		if e.GetChatId() != w.GetChatId() || e.GetMetadata().GetVersion() != w.GetVersion()-int64(len(events)-1-i) ||
			e.GetMetadata().GetGeneration() != generation {
			return chat.Commit{}, fmt.Errorf("nudge: event %d is not one of the commit", i)
		}
	}
	return chat.Commit{
		ChatID: w.GetChatId(), Head: table.Head{ChatID: w.GetChatId(), Version: w.GetVersion()}, Events: events,
		Outbox: store.Row{Key: store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard(w.GetChatId())),
			SK: w.GetRow()}},
	}, nil
}
