package table

import "github.com/parley-chat/parley/server/store"

// Notification is that a consumer group gave an event up. Table notifications, key
// partition of the chat, user or day, and time and id of the dead letter. It expires when
// the dead letter does.
type Notification struct {
	Group, Topic string // the group that gave up, and the record's topic
	Partition    int64  // of the record
	Offset       int64
	Class        int64  // of the failure, as in the dead letter
	Reason       string // without content of the record
	Consumer     string // process of the group
	Attempts     int64
	FailedAt     int64  // unix ms
	ChatID       string // empty with the rest if the record is no event that can be read
	Version      int64
	EventID      string
	EventType    string
	Actor        string // the user or process that caused the event
	EventTime    int64  // unix ms
	ExpiresAt    int64  // unix s
}

// Item returns the row as an item.
func (n Notification) Item() store.Item {
	a := make(attrs, 0, 16)
	a.optStr("actor", n.Actor)
	a.optInt(AttrAttempts, n.Attempts)
	a.optStr("chat_id", n.ChatID)
	a.optInt("class", n.Class)
	a.optStr("consumer", n.Consumer)
	a.optStr("event_id", n.EventID)
	a.optInt("event_time", n.EventTime)
	a.optStr("event_type", n.EventType)
	a.optInt(store.ExpiresAtField, n.ExpiresAt)
	a.int("failed_at", n.FailedAt)
	a.str("group", n.Group)
	a.int("offset", n.Offset)
	a.int("partition", n.Partition)
	a.optStr("reason", n.Reason)
	a.str("topic", n.Topic)
	a.optInt(AttrVersion, n.Version)
	return a.item()
}

// NotificationFrom reads a row of notifications.
func NotificationFrom(it store.Item) Notification {
	return Notification{
		Group: str(it, "group"), Topic: str(it, "topic"), Partition: num(it, "partition"), Offset: num(it, "offset"),
		Class: num(it, "class"), Reason: str(it, "reason"), Consumer: str(it, "consumer"),
		Attempts: num(it, AttrAttempts), FailedAt: num(it, "failed_at"), ChatID: str(it, "chat_id"),
		Version: num(it, AttrVersion), EventID: str(it, "event_id"), EventType: str(it, "event_type"),
		Actor: str(it, "actor"), EventTime: num(it, "event_time"), ExpiresAt: num(it, store.ExpiresAtField),
	}
}
