package push

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
)

// message is one that a session received.
type message struct {
	partition int32
	position  int64
	attempt   int32
	moves     int64
	message   *topicv1.TopicMessage // nil: it cannot be read
}

// read is the message of a delivery that has one.
func read(d *serving.Delivery) message {
	m := message{partition: d.Partition, position: d.Base, attempt: 1, moves: d.Moves}
	if d.Offsets != nil {
		m.position += int64(d.Offsets[0])
	}
	if d.Attempts != nil {
		m.attempt = int32(d.Attempts[0])
	}
	for _, piece := range d.Pieces {
		if len(piece) == 0 {
			continue
		}
		_, _, tag := protowire.ConsumeTag(piece)
		if tag < 0 {
			return m
		}
		body, size := protowire.ConsumeBytes(piece[tag:])
		decoded := &topicv1.TopicMessage{}
		if size >= 0 && proto.Unmarshal(body, decoded) == nil {
			m.message = decoded
		}
		return m
	}
	return m
}

func (m message) id() string { return serving.MessageID(m.partition, m.position) }

func (m message) stored() *topicv1.StoredMessage {
	return &topicv1.StoredMessage{MessageId: m.id(), Partition: m.partition, Position: m.position, Message: m.message}
}

func (m message) positions() []*topicv1.Positions {
	return []*topicv1.Positions{{Partition: m.partition, Base: m.position, Count: 1}}
}

// wall converts a time of the steady clock to one of the other.
func wall(at, steady, now time.Time) *timestamppb.Timestamp {
	return timestamppb.New(now.Add(at.Sub(steady)))
}
