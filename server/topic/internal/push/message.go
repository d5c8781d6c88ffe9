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

// messages are those of a delivery.
func messages(d *serving.Delivery) []message {
	list := make([]message, 0, d.Count)
	for _, piece := range d.Pieces {
		for len(piece) > 0 && len(list) < d.Count {
			n := len(list)
			m := message{partition: d.Partition, position: d.Base + int64(n), attempt: 1, moves: d.Moves}
			if d.Offsets != nil {
				m.position = d.Base + int64(d.Offsets[n])
			}
			if d.Attempts != nil {
				m.attempt = int32(d.Attempts[n])
			}
			_, _, tag := protowire.ConsumeTag(piece)
			if tag < 0 {
				return append(list, m)
			}
			body, size := protowire.ConsumeBytes(piece[tag:])
			if size < 0 {
				return append(list, m)
			}
			decoded := &topicv1.TopicMessage{}
			if proto.Unmarshal(body, decoded) == nil {
				m.message = decoded
			}
			list = append(list, m)
			piece = piece[tag+size:]
		}
	}
	return list
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
