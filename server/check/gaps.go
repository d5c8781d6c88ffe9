package check

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/check/derive"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A chat's versions and the numbers of its messages have no gaps: a reader takes one for rows that are not visible yet.
// So a repair fills those that no copy can fill. The event of a message that is there is made again from it, with the
// id that it had. In place of a message that is lost comes one that says so. The effect of a lost change on the members
// is unknown, so nothing takes its place.

const (
	// placeholderProducer is the producer of events that a repair has made.
	placeholderProducer = "repair"
	placeholderSender   = "system"
	placeholderText     = "This message was lost when the server's disk was damaged."
)

// placeholder is what stands in for a message that is lost.
func placeholder() table.Message {
	return table.Message{MessageID: chat.NewID("msg_"), SenderID: placeholderSender, Content: placeholderText,
		ContentType: int64(eventv1.ContentType_CONTENT_TYPE_TEXT)}
}

// isPlaceholder reports whether a row is what a repair put in the place of an event.
func isPlaceholder(row store.Row, id string) bool {
	if row.Item.Get("event_id").Str() == id {
		return false
	}
	e, _, bad := decode(row, nil)
	return bad == nil && e.GetMetadata().GetProducerId() == placeholderProducer
}

// before returns the versions that the chat had before an event.
func before(e event.Event) (version, membership int64) {
	md := e.GetMetadata()
	version, membership = md.GetVersion()-1, md.GetMembershipVersion()
	if _, isMessage := e.(*eventv1.MessagePersisted); !isMessage {
		membership--
	}
	return version, membership
}

// lostRemedy is what helps against the loss of events. A repair has put back what its backup had.
func lostRemedy(repaired bool) string {
	if repaired {
		return "repair once more with --from and a backup that may have them, or continue without them"
	}
	return "--repair puts back those that the backup has which --from names"
}

// gap reports the lost events up to a version, and fills their place. exact says that all of them were
// messages, so that d is right.
func (p *chats) gap(
	o *storedChat, d *derive.Chat, version, membership int64, unreadable error,
) (exact bool, err error) {
	first, sequence := d.Head.Version+1, d.Head.Sequence
	after := *d // Skip changes only its head
	changes, err := after.Skip(version, membership)
	if err != nil {
		return false, nil //nolint:nilerr // what follows is refused then, with the reason
	}
	var there int64
	if fills := p.Repair && p.noRepair == ""; fills && changes == 0 {
		there, err = p.fillEvents(o, d, version)
	} else {
		*d = after
		there, err = p.skipMessages(o.id, sequence, d.Head.Sequence, first, fills)
	}
	if err != nil {
		return false, err
	}
	f := Finding{Kind: EventWrong, Where: table.EventKey(o.id, first).String(), Remedy: lostRemedy(p.Repair),
		What: fmt.Sprintf("%d events of the chat, from version %d to %d, are missing", version-first+1, first, version)}
	if unreadable != nil {
		f.What += fmt.Sprintf(" (%v)", unreadable)
	}
	lost := d.Head.Sequence - sequence
	if lost > 0 {
		f.What += fmt.Sprintf("; of their %d messages, from number %d on, %d are there", lost, sequence+1, there)
	}
	if changes > 0 {
		f.What += fmt.Sprintf("; %d changed the chat or its members, and of these rows nothing was checked", changes)
	} else if there == lost && p.Repair && p.noRepair == "" {
		f.Fixed, f.Remedy = true, "repaired"
	}
	p.record(f)
	return changes == 0, nil
}

// fillEvents writes events up to a version, all of messages, and applies them. It returns how many of
// the messages are there.
func (p *chats) fillEvents(o *storedChat, d *derive.Chat, version int64) (there int64, err error) {
	for d.Head.Version < version {
		m := placeholder()
		m.ChatID, m.Sequence, m.CreatedAt = o.id, d.Head.Sequence+1, d.Head.ChangedAt
		if p.messages.at(o.id) && p.messages.row.Key == table.MessageKey(o.id, m.Sequence) && p.messages.bad == nil {
			if stored, bad := table.MessageFrom(p.messages.row); bad == nil {
				m = stored
				there++
			}
		}
		e := p.eventOf(m, d)
		payload, err := event.Marshal(e)
		if err != nil {
			return there, err
		}
		md := e.GetMetadata()
		row := table.Event{ChatID: o.id, Version: md.GetVersion(), EventID: md.GetEventId(), Type: md.GetEventType(),
			Payload: payload}
		if err := p.write(EventWrong, []store.Write{put(table.EventKey(o.id, row.Version), row.Item())}); err != nil {
			return there, err
		}
		if err := d.Apply(e); err != nil {
			return there, err
		}
		if p.log.lacks(e, row.EventID) && !o.waits(row.Version) {
			o.lost = append(o.lost, row.Version)
		}
		if err := p.message(derive.Message(e)); err != nil {
			return there, err
		}
	}
	return there, nil
}

// eventOf makes the event of a message, the next one of its chat.
func (p *chats) eventOf(m table.Message, d *derive.Chat) *eventv1.MessagePersisted {
	id, at := "evt_"+strings.TrimPrefix(m.MessageID, "msg_"), time.UnixMilli(m.CreatedAt)
	md := event.Metadata{Type: event.TypeMessagePersisted, ID: id, ChatID: m.ChatID, At: at,
		Origin: event.Origin{Generation: p.Data.Store.Generation(), Producer: placeholderProducer},
		Cause:  event.Cause{Actor: m.SenderID, Service: m.ServiceID}.Complete(id), Version: d.Head.Version + 1,
		MembershipVersion: d.Head.MembershipVersion}
	return &eventv1.MessagePersisted{Metadata: md.Proto(), ChatId: m.ChatID, MessageId: m.MessageID, Sequence: m.Sequence,
		SenderId: m.SenderID, Content: m.Content, ContentType: eventv1.ContentType(m.ContentType),
		ClientMessageId: m.ClientMessageID, CreatedAt: timestamppb.New(at)}
}

// skipMessages counts the messages between two numbers, whose events are lost. If it fills, it writes those
// that are missing.
func (p *chats) skipMessages(id string, after, upTo, version int64, fills bool) (there int64, err error) {
	for n := after + 1; n <= upTo; n++ {
		key := table.MessageKey(id, n)
		for p.messages.at(id) && p.messages.row.Key.SK < key.SK {
			if err := p.messages.advance(); err != nil {
				return there, err
			}
		}
		if p.messages.at(id) && p.messages.row.Key == key && p.messages.bad == nil {
			there++
		} else if fills {
			m := placeholder()
			m.Version = version
			if err := p.write(MessageWrong, []store.Write{put(key, m.Item())}); err != nil {
				return there, err
			}
		}
		if p.messages.at(id) && p.messages.row.Key == key {
			if err := p.messages.advance(); err != nil {
				return there, err
			}
		}
	}
	return there, nil
}
