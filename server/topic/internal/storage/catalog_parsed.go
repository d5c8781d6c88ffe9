package storage

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store/table"
)

// parsed are settings read from many rows. Rows with the same text share the parsed
// settings, which are never changed. Most topics and subscriptions are made alike.
type parsed struct {
	topics        decoded[*topicv1.TopicConfig]
	subscriptions decoded[*topicv1.SubscriptionConfig]
	texts         map[string]string
}

func newParsed() *parsed {
	return &parsed{decoded[*topicv1.TopicConfig]{}, decoded[*topicv1.SubscriptionConfig]{}, map[string]string{}}
}

// decoded has messages by their text.
type decoded[M proto.Message] map[string]M

// of reads a text, also that of a later release.
func (d decoded[M]) of(text string) (M, error) {
	m, ok := d[text]
	if ok {
		return m, nil
	}
	m = m.ProtoReflect().New().Interface().(M) // it is of its own type
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), m); err != nil {
		return m, err
	}
	d[text] = m
	return m, nil
}

// topic reads a topic's settings.
func (r *parsed) topic(text string) (*topicv1.TopicConfig, error) {
	c, err := r.topics.of(text)
	if err == nil {
		complete(c)
	}
	return c, err
}

// subscription reads a group's row.
func (r *parsed) subscription(group string, row table.Subscription) (*Subscription, error) {
	s := &Subscription{Group: group, Row: row}
	for state, name := range stateNames {
		if name == row.State {
			s.State, s.Row.State = state, name
		}
	}
	if s.State == None {
		return nil, fmt.Errorf("unknown state %q", row.State)
	}
	text, ok := r.texts[row.Config]
	if !ok {
		text = row.Config
		r.texts[text] = text
	}
	s.Row.Config = text
	var err error
	if s.Push, err = pushOf(row.Push); err != nil {
		return nil, err
	}
	s.Config, err = r.subscriptions.of(text)
	return s, err
}
