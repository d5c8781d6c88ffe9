package operations

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Headers of a dead letter, beside those of its message.
const (
	HeaderTopic    = "parley-topic"      // of the message
	HeaderMessage  = "parley-message-id" // of the message
	HeaderGroup    = "parley-group"      // that gave it up
	HeaderAttempts = "parley-attempts"   // how often it had been delivered
	HeaderError    = "parley-error"      // of the last attempt
	HeaderFirst    = "parley-first-failed-at"
)

// HeaderRedriven is the header of a message that was put back: the id of its dead letter.
// HeaderFirst stays with it, so that its next dead letter has it, too.
const HeaderRedriven = "parley-redriven"

// ownHeaders are the headers that a dead letter has and its message had not.
var ownHeaders = []string{
	HeaderTopic, HeaderMessage, HeaderGroup, HeaderAttempts, HeaderError, HeaderFirst, HeaderRedriven,
}

// IsOwnHeader reports whether a header is the server's and not the publisher's.
func IsOwnHeader(name string) bool { return slices.Contains(ownHeaders, name) }

// IsReserved reports whether publishers cannot set a header: with those of dead letters they
// could forge where a message comes from.
func IsReserved(header string) bool { return strings.HasPrefix(header, "parley-") }

// errForm is returned for a message that is no dead letter.
var errForm = errors.New("operations: not a dead letter")

// DeadLetterPosition is where a dead letter stands. The zero DeadLetterPosition is before all
// dead letters.
type DeadLetterPosition struct {
	Log       string // topic: NAME.dlq, or of a parked message its own
	Parked    bool
	Partition int32
	Position  int64
	Group     string // of a parked message
}

// ID is the name of the dead letter that stands there: NAME.dlq/PARTITION-POSITION or, parked,
// NAME/PARTITION-POSITION/GROUP.
func (p DeadLetterPosition) ID() string {
	id := fmt.Sprintf("%s/%d-%d", p.Log, p.Partition, p.Position)
	if p.Parked {
		id += "/" + p.Group
	}
	return id
}

// DeadLetterPositionOf is the position in an id; false if it is none.
func DeadLetterPositionOf(id string) (p DeadLetterPosition, ok bool) {
	parts := strings.Split(id, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return p, false
	}
	p.Log = parts[0]
	if p.Parked = len(parts) == 3; p.Parked {
		p.Group = parts[2]
	}
	p.Partition, p.Position, ok = parseMessageID(parts[1])
	return p, ok
}

// parseMessageID reads the id of a message.
func parseMessageID(id string) (partition int32, position int64, ok bool) {
	a, b, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(a, 10, 32)
	if err == nil {
		position, err = strconv.ParseInt(b, 10, 64)
	}
	return int32(n), position, err == nil && n >= 0 && position >= 0
}

// Compare orders positions as Scan does.
func (p DeadLetterPosition) Compare(q DeadLetterPosition) int {
	parked := func(p DeadLetterPosition) int {
		if p.Parked {
			return 1
		}
		return 0
	}
	return cmp.Or(strings.Compare(p.Log, q.Log), parked(p)-parked(q), cmp.Compare(p.Partition, q.Partition),
		cmp.Compare(p.Position, q.Position), strings.Compare(p.Group, q.Group))
}

// DeadLetter is a message that a group gave up.
type DeadLetter struct {
	LogPosition DeadLetterPosition
	// Number is that of the topic in which the dead letter stands; it is never used again.
	Number uint64

	Topic     string // of the message
	Partition int32  // as it was published
	Position  int64
	Group     string
	Attempts  int
	Reason    string // of the last failure; empty if it is not known
	// First and Last are when it failed; zero if that is not known. First is before the
	// message was put back for the first time.
	First, Last time.Time
	// Message is as it was published, with the headers of a message that was put back.
	Message *topicv1.TopicMessage
}

// parseDeadLetter reads a message of a topic of dead letters.
func parseDeadLetter(p DeadLetterPosition, number uint64, m *topicv1.TopicMessage) (DeadLetter, error) {
	h := m.GetHeaders()
	l := DeadLetter{
		LogPosition: p, Number: number, Topic: h[HeaderTopic], Group: h[HeaderGroup], Reason: h[HeaderError],
		Last: m.GetPublishTime().AsTime(), First: m.GetPublishTime().AsTime(), Message: m,
	}
	var ok bool
	l.Partition, l.Position, ok = parseMessageID(h[HeaderMessage])
	attempts, err := strconv.Atoi(h[HeaderAttempts])
	if !ok || err != nil || l.Topic == "" || l.Group == "" {
		return l, errForm
	}
	l.Attempts = attempts
	if first, err := strconv.ParseInt(h[HeaderFirst], 10, 64); err == nil {
		l.First = time.UnixMilli(first).UTC()
	}
	for _, name := range []string{HeaderTopic, HeaderMessage, HeaderGroup, HeaderAttempts, HeaderError} {
		delete(h, name)
	}
	return l, nil
}

// back is the message that goes to the group again.
func (l *DeadLetter) back() *topicv1.TopicMessage {
	m := &topicv1.TopicMessage{
		Key: l.Message.GetKey(), Type: l.Message.GetType(), CorrelationId: l.Message.GetCorrelationId(),
		Payload: l.Message.GetPayload(), Headers: maps.Clone(l.Message.GetHeaders()),
	}
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[HeaderRedriven] = l.LogPosition.ID()
	m.Headers[HeaderFirst] = strconv.FormatInt(l.First.UnixMilli(), 10)
	return m
}
