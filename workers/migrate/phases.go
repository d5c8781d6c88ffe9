package migrate

import (
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka/versions"
)

// The transitions. Each is a pure function from one state to another.

// startMigration plans a migration. An abandoned version has no records; it is used again if
// it has the requested number of partitions.
func startMigration(s versions.State, r Request, now time.Time) (versions.State, error) {
	to := s.Clone()
	list := slices.Clone(s.Of(r.Topic))
	i := slices.IndexFunc(list, func(v versions.Version) bool {
		return v.Status == versions.Abandoned &&
			v.Partitions == r.Partitions
	})
	switch {
	case i >= 0:
		list[i].Status = versions.Next
	case len(list) >= versions.MaxVersions:
		return s, fmt.Errorf("%w: %s has had %d versions", ErrInvalid, r.Topic, len(list))
	default:
		list = append(list, versions.Version{Number: len(list) + 1, Partitions: r.Partitions, Status: versions.Next})
	}
	to.Topics[r.Topic] = list
	to.Move = &versions.Move{Topic: r.Topic, Phase: versions.Planned, By: r.By, Started: now.UnixMilli()}
	return to, nil
}

// sameMigration returns an error if another migration than the requested one is under way.
func sameMigration(s versions.State, r Request) error {
	v, _ := next(s)
	if s.Move.Phase == versions.Switched {
		v = s.Current(s.Move.Topic)
	}
	if s.Move.Topic == r.Topic && v.Partitions == r.Partitions {
		return nil
	}
	return fmt.Errorf("%w: %s to %d partitions, begun by %s: end or abort it first", ErrBusy, s.Move.Topic, v.Partitions,
		s.Move.By)
}

// next returns the version that is being prepared.
func next(s versions.State) (versions.Version, bool) {
	list := s.Of(s.Move.Topic)
	i := slices.IndexFunc(list, func(v versions.Version) bool { return v.Status == versions.Next })
	if i < 0 {
		return versions.Version{}, false
	}
	return list[i], true
}

// topicNames returns the old and the new topic of a migration; both are the current topic if
// there is none.
func topicNames(s versions.State, base string) (from, to string) {
	current := s.Current(base)
	from = versions.Name(base, current.Number)
	if s.Move == nil || s.Move.Topic != base {
		return from, from
	}
	if v, ok := next(s); ok {
		return from, versions.Name(base, v.Number)
	}
	past := versions.Version{} // after the switch: the old topic
	for _, v := range s.Of(base) {
		if v.Status == versions.Past && v.Until >= past.Until {
			past = v
		}
	}
	return versions.Name(base, past.Number), from
}

// inPhase returns the state in another phase. A phase that is not frozen has no end of the
// freeze.
func inPhase(s versions.State, phase versions.Phase) *versions.State {
	to := s.Clone()
	to.Move.Phase = phase
	if !to.Frozen(to.Move.Topic) {
		to.Move.FrozenAt, to.Move.ThawAfter, to.Move.Revision = 0, 0, 0
	}
	return &to
}

// freeze makes the relays keep the topic's events back; they must report the next revision.
func freeze(s versions.State, now time.Time, longest time.Duration) *versions.State {
	to := s.Clone()
	to.Move.Phase, to.Move.FrozenAt, to.Move.ThawAfter = versions.Frozen, now.UnixMilli(), now.Add(longest).UnixMilli()
	to.Move.Revision = s.Revision + 1
	return &to
}

// switchTopics makes the new version the current one.
func switchTopics(s versions.State, now time.Time) *versions.State {
	to := s.Clone()
	list := to.Topics[to.Move.Topic]
	for i := range list {
		switch list[i].Status {
		case versions.Current:
			list[i].Status, list[i].Until = versions.Past, now.UnixMilli()
		case versions.Next:
			list[i].Status, list[i].From = versions.Current, s.Move.FrozenAt
		}
	}
	to.Move.Phase, to.Move.FrozenAt, to.Move.ThawAfter = versions.Switched, 0, 0
	to.Move.Revision = s.Revision + 1
	return &to
}

func abort(s versions.State) (versions.State, error) {
	switch {
	case s.Move == nil:
		return s, fmt.Errorf("%w: there is no migration", ErrCannotAbort)
	case s.Move.Phase == versions.Switched:
		return s, fmt.Errorf("%w: %s is published to its new topic; run the migration to its end, and migrate back if need be", ErrCannotAbort, s.Move.Topic)
	}
	to := s.Clone()
	list := to.Topics[s.Move.Topic]
	for i := range list {
		if list[i].Status == versions.Next {
			list[i].Status = versions.Abandoned
		}
	}
	to.Move = nil
	return to, nil
}

func retire(s versions.State, topic string, now time.Time) (versions.State, error) {
	v, ok := s.Find(topic)
	base, _, _ := versions.Base(topic)
	switch {
	case !ok || v.Status != versions.Past:
		return s, fmt.Errorf("%w: %.80q is no past version of a topic", ErrCannotRetire, topic)
	case now.Before(v.KeptUntil(base)):
		return s, fmt.Errorf("%w: its last record is kept until %s", ErrCannotRetire,
			v.KeptUntil(base).UTC().Format(time.RFC3339))
	}
	to := s.Clone()
	to.Topics[base][v.Number-1].Status = versions.Retired
	return to, nil
}
