package topic

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/operations"
)

// MaxDeadLetterTopics is how many topics a selection names at most.
const MaxDeadLetterTopics = 10_000

// PositionFromWire is a position; the zero DeadLetterPosition for nil.
func PositionFromWire(p *linkv1.LetterPlace) operations.DeadLetterPosition {
	return operations.DeadLetterPosition{
		Log: p.GetLog(), Parked: p.GetParked(), Partition: p.GetPartition(), Position: p.GetPosition(),
		Group: p.GetGroup(),
	}
}

// PositionToWire is the inverse of PositionFromWire.
func PositionToWire(p operations.DeadLetterPosition) *linkv1.LetterPlace {
	return &linkv1.LetterPlace{Log: p.Log, Parked: p.Parked, Partition: p.Partition, Position: p.Position, Group: p.Group}
}

// SelectionFromWire is which dead letters are meant.
func SelectionFromWire(m *linkv1.LetterSelection) operations.DeadLetterSelection {
	s := operations.DeadLetterSelection{Topic: m.GetTopic(), Group: m.GetGroup(), Dead: m.GetDead()}
	for _, p := range m.GetPlaces() {
		s.Positions = append(s.Positions, PositionFromWire(p))
	}
	for _, name := range m.GetLogs() {
		if s.Logs == nil {
			s.Logs = map[string]bool{}
		}
		s.Logs[name] = true
	}
	for _, a := range m.GetStarts() {
		if s.After == nil {
			s.After = map[commitlog.Partition]int64{}
		}
		s.After[commitlog.Partition{Topic: a.GetNumber(), Number: a.GetPartition()}] = a.GetPosition()
	}
	return s
}

// SelectionToWire is the inverse of SelectionFromWire for one slot: has reports which logs the
// slot has, owns which numbers of topics. A selection of no topic cannot be expressed, so its
// caller sends no request.
func SelectionToWire(
	s *operations.DeadLetterSelection, has func(log string) bool, owns func(number uint64) bool,
) *linkv1.LetterSelection {
	m := &linkv1.LetterSelection{Topic: s.Topic, Group: s.Group, Dead: s.Dead}
	for _, p := range s.Positions {
		if has(p.Log) {
			m.Places = append(m.Places, PositionToWire(p))
		}
	}
	for name := range s.Logs {
		if has(name) {
			m.Logs = append(m.Logs, name)
		}
	}
	if len(m.GetLogs()) > MaxDeadLetterTopics {
		m.Logs = nil // it is only more that is read
	}
	for p, at := range s.After {
		if owns(p.Topic) {
			m.Starts = append(m.Starts, &linkv1.LetterStart{Number: p.Topic, Partition: p.Number, Position: at})
		}
	}
	return m
}

// DeadLetterFromWire is a dead letter.
func DeadLetterFromWire(m *linkv1.Letter) operations.DeadLetter {
	l := operations.DeadLetter{
		LogPosition: PositionFromWire(m.GetPlace()), Number: m.GetNumber(), Topic: m.GetTopic(), Partition: m.GetPartition(),
		Position: m.GetPosition(), Group: m.GetGroup(), Attempts: int(m.GetAttempts()), Reason: m.GetReason(),
		Message: m.GetMessage(),
	}
	if m.GetFirstFailedAt() != nil {
		l.First = m.GetFirstFailedAt().AsTime()
	}
	if m.GetLastFailedAt() != nil {
		l.Last = m.GetLastFailedAt().AsTime()
	}
	return l
}

// DeadLetterToWire is the inverse of DeadLetterFromWire.
func DeadLetterToWire(l operations.DeadLetter) *linkv1.Letter {
	return &linkv1.Letter{
		Place: PositionToWire(l.LogPosition), Number: l.Number, Topic: l.Topic, Partition: l.Partition, Position: l.Position,
		Group: l.Group, Attempts: int64(l.Attempts), Reason: l.Reason, FirstFailedAt: stamp(l.First),
		LastFailedAt: stamp(l.Last), Message: l.Message,
	}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// DeadLetterRefFromWire is a dead letter as far as it is named.
func DeadLetterRefFromWire(m *linkv1.LetterRef) operations.DeadLetter {
	return operations.DeadLetter{
		LogPosition: PositionFromWire(m.GetPlace()), Number: m.GetNumber(), Topic: m.GetTopic(), Group: m.GetGroup(),
	}
}

// DeadLetterRefToWire names a dead letter.
func DeadLetterRefToWire(l operations.DeadLetter) *linkv1.LetterRef {
	return &linkv1.LetterRef{Place: PositionToWire(l.LogPosition), Number: l.Number, Topic: l.Topic, Group: l.Group}
}
