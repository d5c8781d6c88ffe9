package modeltest

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// scene is a history of a group of a topic, as if a world had recorded it.
type scene struct {
	*World
	t     *topicState
	g     *group
	began time.Time
}

func newScene(config *topicv1.TopicConfig, with func(*topicv1.SubscriptionConfig)) *scene {
	w := New(Config{Simulated: true})
	s := &scene{World: w, t: w.topic("t", config), began: time.Unix(1_000_000, 0)}
	s.g = s.t.group("g", 1, with)
	return s
}

// at is the next moment, some time after the scene began.
func (s *scene) at(after time.Duration) stamp {
	s.seq++
	return stamp{s.seq, s.began.Add(after)}
}

func (s *scene) publish(n int64, after time.Duration) position {
	p := &publication{span: span{s.at(after), s.at(after)}, message: &topicv1.TopicMessage{Key: "k"},
		position: position{0, n}, stored: true}
	s.t.order = append(s.t.order, p)
	return p.position
}

// deliver records that a session reads a message, which the server gave away after from.
func (s *scene) deliver(to *session, at position, from stamp, after time.Duration) {
	s.g.delivered[at] = append(s.g.delivered[at], &delivery{session: to, from: from, at: s.at(after), position: at,
		message: &topicv1.TopicMessage{Key: "k"}, attempt: 1})
}

// acked records an acknowledgement that was answered as done.
func (s *scene) acked(by *session, at position, call stamp, after time.Duration) {
	s.g.settled[at] = append(s.g.settled[at],
		&settlement{span: span{call, s.at(after)}, session: by, kind: ack, outcome: done})
}

// wants checks what an audit finds: one finding that starts with a text, none if that is empty.
func (s *scene) wants(t *testing.T, start string, check func(*audit)) {
	t.Helper()
	at := map[position]*publication{}
	for _, p := range s.t.order {
		at[p.position] = p
	}
	check(s.audit(s.t, s.g, at, map[string]map[position]int{}))
	found := strings.Join(s.findings, "\n")
	if len(s.findings) > 1 || (found == "") != (start == "") || !strings.HasPrefix(found, start) {
		t.Errorf("found %q, should be %q", found, start)
	}
}

// What a member says of a delivery that it has read counts for one of the same moment that it has not: see
// overtaken.
func TestKeyOrderInOneMoment(t *testing.T) {
	for _, acknowledges := range []bool{true, false} {
		s := newScene(nil, byKey)
		x, y := &session{id: "x"}, &session{id: "y"}
		first, second := s.publish(0, 0), s.publish(1, 0)
		s.t.order[0].message.Delay = durationpb.New(0) // later messages may pass it while nothing of the key is in hand
		s.deliver(x, first, s.at(0), 0)
		moment := s.at(2 * lease)
		if acknowledges {
			s.acked(x, first, moment, 2*lease)
		}
		s.deliver(y, second, moment, 2*lease)
		s.deliver(x, first, moment, 2*lease)
		s.wants(t, map[bool]string{false: "key order:"}[acknowledges], (*audit).keys)
	}
}

// An acknowledgement of a message that was trimmed is answered as done, if the group need not get the message: see
// trimmable.
func TestLateAcknowledgementOfTrimmed(t *testing.T) {
	trims := &topicv1.TopicConfig{MessageRetention: durationpb.New(0)}
	for _, c := range []struct {
		config *topicv1.TopicConfig
		older  bool // than the group
		finds  string
	}{{trims, true, ""}, {trims, false, "late"}, {nil, true, "late"}} {
		s := newScene(c.config, nil)
		x, y := &session{id: "x"}, &session{id: "y"}
		s.g.born = span{s.at(0), s.at(0)}
		at := s.publish(0, 0)
		if c.older {
			s.g.born = span{s.at(0), s.at(0)}
		}
		s.deliver(x, at, s.at(0), 0)
		s.deliver(y, at, s.at(lease), lease)
		s.acked(x, at, s.at(lease+lease/2), lease+lease/2)
		s.wants(t, c.finds, (*audit).leases)
	}
}

// A statement that waits on a stream while another member acknowledges the message takes effect later: see follows.
func TestStatementOnItsWay(t *testing.T) {
	for _, acknowledges := range []bool{true, false} {
		s := newScene(nil, nil)
		x, y := &session{id: "x"}, &session{id: "y"}
		at := s.publish(0, 0)
		s.deliver(x, at, s.at(0), 0)
		call := s.at(lease)
		s.deliver(y, at, s.at(lease+time.Millisecond), lease+time.Millisecond)
		if acknowledges {
			s.acked(y, at, s.at(lease+time.Millisecond), lease+time.Millisecond)
		}
		s.acked(x, at, call, lease+2*time.Millisecond)
		s.wants(t, map[bool]string{false: "again:"}[acknowledges], (*audit).acknowledged)
	}
}
