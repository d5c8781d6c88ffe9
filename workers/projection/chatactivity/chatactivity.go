// Package chatactivity is a projection: how many messages a chat had on each day, and how
// many users sent them.
//
// It owns what is counted and how it is read; how events get into it once is package
// projection's. A day is one in UTC, of the time at which a message was stored. Deleting a
// message changes nothing: it was sent.
//
// Concurrency: all functions are safe for concurrent use.
package chatactivity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/projection"
)

// Name is the projection's name.
const Name = "chat_activity"

// Limits of a query.
const (
	MaxDays    = 366
	MaxSenders = 1_000 // of a day
)

// ErrInvalid is the error of a query that cannot be answered.
var ErrInvalid = errors.New("chatactivity: invalid query")

// Definition returns the projection.
func Definition() projection.Definition {
	return projection.Definition{
		Name: Name, About: "messages and senders of each chat and day", Version: 1, Table: store.Projections,
		Topics: []string{kafka.MessagesPersisted}, Types: []string{event.TypeMessagePersisted},
		Touches: touches, Apply: apply,
	}
}

const dayFormat = "2006-01-02"

// Prefixes of sort keys.
const (
	days    = "day/"
	senders = "sender/"
)

func dayKey(day string) string { return days + day }

func senderKey(day, user string) string { return senders + day + "/" + user }

func countKey(m *eventv1.MessagePersisted) (day, sender string) {
	day = m.GetCreatedAt().AsTime().Format(dayFormat)
	return dayKey(day), senderKey(day, m.GetSenderId())
}

func touches(e event.Event) []string {
	m, ok := e.(*eventv1.MessagePersisted)
	if !ok {
		return nil
	}
	day, sender := countKey(m)
	return []string{day, sender}
}

func apply(e event.Event, rows projection.Rows) {
	m, ok := e.(*eventv1.MessagePersisted)
	if !ok {
		return
	}
	day, sender := countKey(m)
	all, own := table.ChatActivityFrom(rows[day]), table.ChatActivityFrom(rows[sender])
	if own.Messages == 0 {
		all.Senders++
	}
	all.Messages++
	own.Messages++
	rows[day], rows[sender] = all.Item(), own.Item()
}

// Day is a day on which a chat had messages.
type Day struct {
	Date              string // 2006-01-02, UTC
	Messages, Senders int64
}

// Days returns the days from one to another, both included, on which a chat had messages,
// in their order; a chat that is unknown had none. There are at most MaxDays.
func Days(ctx context.Context, st store.Store, chatID string, from, to time.Time) ([]Day, error) {
	if to.Before(from) || to.Sub(from) > MaxDays*24*time.Hour {
		return nil, fmt.Errorf("%w: 1 to %d days in their order", ErrInvalid, MaxDays)
	}
	var list []Day
	err := rows(ctx, st, chatID, dayKey(from.UTC().Format(dayFormat)), dayKey(to.UTC().Format(dayFormat)), MaxDays+1,
		func(sk string, a table.ChatActivity) {
			list = append(list, Day{strings.TrimPrefix(sk, days), a.Messages, a.Senders})
		})
	return list, err
}

// Sender is a user who sent messages to a chat on a day.
type Sender struct {
	UserID   string
	Messages int64
}

// Senders returns the senders of messages to a chat on a day, by user, at most MaxSenders.
func Senders(ctx context.Context, st store.Store, chatID string, day time.Time) ([]Sender, error) {
	prefix := senderKey(day.UTC().Format(dayFormat), "")
	var list []Sender
	err := rows(ctx, st, chatID, prefix, prefix+"\U0010ffff", MaxSenders, func(sk string, a table.ChatActivity) {
		list = append(list, Sender{strings.TrimPrefix(sk, prefix), a.Messages})
	})
	return list, err
}

// rows reads rows of the live build.
func rows(
	ctx context.Context, st store.Store, chatID, from, to string, limit int, each func(string, table.ChatActivity),
) error {
	build, err := projection.Live(ctx, st, Name)
	if err != nil {
		return err
	}
	q := store.Query{Table: store.Projections, PK: table.ProjectionPartition(Name, build, chatID), From: from, To: to,
		Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, st, q) {
		if err != nil {
			return fmt.Errorf("read the activity of %s: %w", chatID, err)
		}
		if limit--; limit < 0 {
			return nil
		}
		each(row.Key.SK, table.ChatActivityFrom(row.Item))
	}
	return nil
}
