// Package notifications is a projection: which events which consumer group could not process,
// why, and what became of it since.
//
// A row stands for an event and a group that gave it up, and follows from the dead letter
// alone. That a group has processed an event needs no row: it is so if its committed offset
// is beyond the event, and there is no row. The later actions on a dead letter are in one
// place, its own row (package deadletter), which a query reads beside the projection; so a
// dead letter that is redriven shows at once, in every build. The projection is never a
// source: it may be dropped, and is made again from the topic of dead letters.
//
// Rows stand three times, for the chat, for the user who caused the event, and for the day,
// and expire when their dead letters do.
//
// Concurrency: all functions are safe for concurrent use.
package notifications

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter/encoding"
	"github.com/parley-chat/parley/workers/projection"
)

// Name is the projection's name.
const Name = "notifications"

// keepFor is how long the topic of dead letters keeps them.
const keepFor = 30 * 24 * time.Hour

// Definition returns the projection.
func Definition() projection.Definition {
	return projection.Definition{
		Name: Name, About: "events that a consumer could not process, and what became of them", Version: 1,
		Table: store.Notifications, Topics: []string{kafka.DeadLetters}, Source: kafka.DeadLetters, Rows: rows,
	}
}

// Prefixes of aggregates.
const (
	chats = "chat/"
	users = "user/"
	days  = "day/"
)

const dayFormat = "2006-01-02"

// maxReason is how much of a reason a row keeps, in bytes.
const maxReason = 1_000

// rows returns what a dead letter says. A record that is none is ignored: as a dead letter of
// its own it would come again here.
func rows(ctx context.Context, r *kafka.Record, decode projection.Decode) ([]projection.Row, error) {
	_, payload, err := event.Unframe(r.Value)
	if err != nil {
		return nil, consume.Fail(consume.Ignored, "the record is no dead letter", err)
	}
	l, err := encoding.Decode(payload)
	if err != nil {
		return nil, consume.Fail(consume.Ignored, "the record is no dead letter", err)
	}
	n, err := notificationOf(ctx, l, decode)
	if err != nil {
		return nil, consume.Fail(consume.Authoritative, "the schema registry does not answer", err)
	}
	sk := table.Number(max(n.FailedAt, 0)) + "#" + l.ID()
	list := []projection.Row{{Aggregate: days + l.FailedAt.UTC().Format(dayFormat), SK: sk, Item: n.Item()}}
	if n.ChatID != "" {
		list = append(list, projection.Row{Aggregate: chats + n.ChatID, SK: sk, Item: n.Item()})
	}
	if n.Actor != "" {
		list = append(list, projection.Row{Aggregate: users + n.Actor, SK: sk, Item: n.Item()})
	}
	for _, row := range list {
		key := store.Key{Table: store.Notifications, PK: Name + row.Aggregate, SK: row.SK}
		if err := key.Validate(); err != nil {
			return nil, consume.Fail(consume.Ignored, "the dead letter names what cannot be a key", err)
		}
	}
	return list, nil
}

// notificationOf is the row of a dead letter. Its event is left out if it cannot be read; only
// an error that passes is returned.
func notificationOf(ctx context.Context, l encoding.DeadLetter, decode projection.Decode) (table.Notification, error) {
	n := table.Notification{
		Group: l.Group, Topic: l.Record.Topic, Partition: int64(l.Record.Partition), Offset: l.Record.Offset,
		Class: int64(l.Class), Reason: truncated(l.Reason), Consumer: l.Consumer, Attempts: int64(l.Attempts),
		FailedAt: l.FailedAt.UnixMilli(), ExpiresAt: l.FailedAt.Add(keepFor).Unix(),
	}
	e, err := decode(ctx, l.Record.Key, l.Record.Value)
	if errors.Is(err, event.ErrSchema) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	md := e.GetMetadata()
	n.ChatID, n.Version, n.EventID, n.EventType = e.GetChatId(), md.GetVersion(), md.GetEventId(), md.GetEventType()
	n.Actor, n.EventTime = md.GetActorId(), md.GetEventTime().AsTime().UnixMilli()
	return n, nil
}

func truncated(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return reason
}
