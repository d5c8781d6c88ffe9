package eventlog

import (
	"errors"
	"slices"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
)

// span is a range of positions, [from,to).
type span struct{ from, to int64 }

// maxSpans bounds the ranges that are remembered of a partition. With more of them the first is
// forgotten, and reported again when it is read again.
const maxSpans = 1000

// maxLines bounds the lines about such ranges, of all partitions, in a process.
const maxLines = 1000

// add adds a range to disjoint ones in order, and returns how many positions are new.
func add(list []span, s span) ([]span, int64) {
	fresh := s.to - s.from
	i := 0
	for i < len(list) && list[i].to < s.from {
		i++
	}
	j := i
	for ; j < len(list) && list[j].from <= s.to; j++ {
		fresh -= max(0, min(list[j].to, s.to)-max(list[j].from, s.from))
	}
	if j > i {
		s = span{min(s.from, list[i].from), max(s.to, list[j-1].to)}
	}
	if list = slices.Replace(list, i, j, s); len(list) > maxSpans {
		list = slices.Delete(list, 0, 1)
	}
	return list, fresh
}

// Unreadable is how many offsets readers were not given, because they cannot be read from the store:
// each once, from the start of the process on.
func (l *Log) Unreadable() int64 { return l.unreadable.Load() }

// lose records that a range of a partition cannot be read, and logs it unless that was done.
func (l *Log) lose(p *partition, s span, cause error) {
	p.mu.Lock()
	var fresh int64
	p.lost, fresh = add(p.lost, s)
	p.mu.Unlock()
	if fresh == 0 {
		return
	}
	l.unreadable.Add(fresh)
	switch n := l.lostLines.Add(1); {
	case n > maxLines+1:
		return
	case n > maxLines:
		l.cfg.Logger.Error("more records of the event log cannot be read; only the metric counts them from now on")
		return
	}
	l.cfg.Logger.Error("records of the event log cannot be read; readers continue behind them", "topic", p.name.Topic,
		"partition", p.name.ID, "from", s.from, "to", s.to-1, "remedy", l.remedy(p.name.Topic, cause), "error", cause)
}

// remedy says how to get back what cannot be read.
func (l *Log) remedy(topic string, cause error) string {
	var batch *commitlog.CorruptError
	chats := slices.ContainsFunc(l.Topics(), func(t kafka.Topic) bool { return t.Name == topic && t.Kind == kafka.Chats })
	switch {
	case chats && errors.As(cause, &batch):
		return "the events are in the store; server replay publishes them again"
	case chats:
		return "the store has lost the event; restore a backup that has it"
	}
	return "the records are in no other place; restore a backup that has them if they are needed"
}
