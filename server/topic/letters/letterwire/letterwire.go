// Package letterwire says how dead letters of topics pass from one process to another.
//
// It owns the form and nothing else. Concurrency: everything is safe for concurrent use.
package letterwire

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/letters"
)

// MaxLogs is how many topics a selection names at most.
const MaxLogs = 10_000

// Place is a place; the zero Place for nil.
func Place(p *linkv1.LetterPlace) letters.Place {
	return letters.Place{Log: p.GetLog(), Parked: p.GetParked(), Partition: p.GetPartition(), Position: p.GetPosition(),
		Group: p.GetGroup()}
}

// FromPlace is the inverse of Place.
func FromPlace(p letters.Place) *linkv1.LetterPlace {
	return &linkv1.LetterPlace{Log: p.Log, Parked: p.Parked, Partition: p.Partition, Position: p.Position, Group: p.Group}
}

// Selection is which letters are meant.
func Selection(m *linkv1.LetterSelection) letters.Select {
	s := letters.Select{Topic: m.GetTopic(), Group: m.GetGroup(), Dead: m.GetDead()}
	for _, p := range m.GetPlaces() {
		s.Places = append(s.Places, Place(p))
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

// FromSelection is the inverse of Selection, for what a slot may have: logs that has and
// numbers of topics that owns. A selection of no topic cannot be expressed; its caller asks nobody.
func FromSelection(
	s *letters.Select, has func(log string) bool, owns func(number uint64) bool,
) *linkv1.LetterSelection {
	m := &linkv1.LetterSelection{Topic: s.Topic, Group: s.Group, Dead: s.Dead}
	for _, p := range s.Places {
		if has(p.Log) {
			m.Places = append(m.Places, FromPlace(p))
		}
	}
	for name := range s.Logs {
		if has(name) {
			m.Logs = append(m.Logs, name)
		}
	}
	if len(m.GetLogs()) > MaxLogs {
		m.Logs = nil // it is only more that is read
	}
	for p, at := range s.After {
		if owns(p.Topic) {
			m.Starts = append(m.Starts, &linkv1.LetterStart{Number: p.Topic, Partition: p.Number, Position: at})
		}
	}
	return m
}

// Letter is a letter.
func Letter(m *linkv1.Letter) letters.Letter {
	l := letters.Letter{
		Place: Place(m.GetPlace()), Number: m.GetNumber(), Topic: m.GetTopic(), Partition: m.GetPartition(),
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

// FromLetter is the inverse of Letter.
func FromLetter(l letters.Letter) *linkv1.Letter {
	return &linkv1.Letter{
		Place: FromPlace(l.Place), Number: l.Number, Topic: l.Topic, Partition: l.Partition, Position: l.Position,
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

// Ref is a letter as far as it is named.
func Ref(m *linkv1.LetterRef) letters.Letter {
	return letters.Letter{Place: Place(m.GetPlace()), Number: m.GetNumber(), Topic: m.GetTopic(), Group: m.GetGroup()}
}

// FromRef names a letter.
func FromRef(l letters.Letter) *linkv1.LetterRef {
	return &linkv1.LetterRef{Place: FromPlace(l.Place), Number: l.Number, Topic: l.Topic, Group: l.Group}
}
