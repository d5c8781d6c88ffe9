package machine

import (
	"container/heap"
	"iter"
	"maps"
	"slices"
	"time"
)

// Failure is what is known of a message that was delivered in vain.
type Failure struct {
	Attempts int
	Due      int64 // unix ns, not before
}

// Undeliverable is a message that failed too often. It stays as it is until it is buried.
type Undeliverable struct {
	Position int64
	Attempts int
	Reason   string
	// Moves is how often the group had been moved before. A message that fails again after a
	// move is another dead letter; with the same Moves it is the same one, as after a restart.
	Moves int64
}

// Parked is a message that waits until its key is unparked.
type Parked struct {
	Key      string
	Position int64
	Attempts int
	Waiting  int // messages of the key that wait behind it, as far as they were checked
}

// failureTable has the messages of a group that were delivered in vain: how often, and what they
// wait for. It knows the pauses between attempts, and not when a message has failed too often. A
// message that waits here is ready nowhere else; the machine sees to that.
type failureTable struct {
	// Dying are positions that failed too often and are being stored as dead letters.
	Dying Set

	byPosition  map[int64]Failure
	latest      int64            // no failure is of a later position
	delayed     delays           // wait until they are due
	deadLetters []Undeliverable  // of those that are dying: not yet passed to the goroutine that stores them
	parked      map[int64]string // wait for an operator, with their keys
	ending      int              // so many of these are among delayed as well
}

// newFailureTable makes an empty table.
func newFailureTable() *failureTable {
	return &failureTable{byPosition: map[int64]Failure{}, latest: -1, parked: map[int64]string{}}
}

// Len is how many messages have failed.
func (t *failureTable) Len() int { return len(t.byPosition) }

// Latest returns a position behind which nothing has failed, -1 if nothing has.
func (t *failureTable) Latest() int64 { return t.latest }

// Upto reports whether a position or a later one may have failed.
func (t *failureTable) Upto(position int64) bool {
	return len(t.byPosition) > 0 && position <= t.latest
}

// Get returns the failure of a position; the zero one if it has not failed.
func (t *failureTable) Get(position int64) Failure { return t.byPosition[position] }

// All are the failures, in no order. They may be removed meanwhile.
func (t *failureTable) All() iter.Seq2[int64, Failure] { return maps.All(t.byPosition) }

// Put notes a failure as it was.
func (t *failureTable) Put(position int64, f Failure) {
	t.byPosition[position] = f
	t.latest = max(t.latest, position)
}

// Remove forgets a failure.
func (t *failureTable) Remove(position int64) { delete(t.byPosition, position) }

// Done forgets what is acknowledged.
func (t *failureTable) Done(from, to int64) {
	if !t.Upto(from) {
		return
	}
	for p := from; p < to; p++ {
		delete(t.byPosition, p)
	}
	if len(t.byPosition) == 0 {
		t.latest = -1
	}
}

// Backoff is the pause after the first failure, and the longest.
type Backoff struct{ Initial, Max time.Duration }

// Fail counts an attempt, after which the message is tried again in a while or, if that is
// negative, by the backoff. It returns how many attempts these were.
func (t *failureTable) Fail(position, now int64, delay time.Duration, b Backoff) (attempts int) {
	f := t.byPosition[position]
	f.Attempts++
	if delay < 0 {
		delay = b.pause(position, f.Attempts)
	}
	f.Due = now + int64(delay)
	t.Put(position, f)
	return f.Attempts
}

// pause is the pause after a number of attempts, give or take a fifth.
func (b Backoff) pause(position int64, attempts int) time.Duration {
	pause := b.Initial
	for i := 1; i < attempts && pause < b.Max; i++ {
		pause *= 2
	}
	pause = min(pause, b.Max)
	// Messages that failed together are spread, in the same way each time.
	mixed := (uint64(position) ^ uint64(attempts)<<56) * 0x9e3779b97f4a7c15
	mixed = (mixed ^ mixed>>32) * 0xd6e8feb86659fd93
	return pause - pause/5 + time.Duration((mixed^mixed>>32)%(uint64(pause/5)*2+1))
}

// Attempt returns which delivery that of a position is, 0 if it is not to be delivered now:
// it is not due, or has had most of them. Up to end, and before to, it is the same.
func (t *failureTable) Attempt(from, to, now int64, limit int) (attempt int, end int64) {
	first := t.byPosition[from]
	if first.Attempts >= limit || first.Due > now {
		return 0, from + 1
	}
	for p := from + 1; p < to; p++ {
		if f := t.byPosition[p]; f.Attempts != first.Attempts || f.Due > now {
			return first.Attempts + 1, p
		}
	}
	return first.Attempts + 1, to
}

// Wait makes a position wait until a time.
func (t *failureTable) Wait(position, due int64) { heap.Push(&t.delayed, delay{due, position}) }

// Due returns when the first of those is due that wait; false if none does.
func (t *failureTable) Due() (at int64, ok bool) {
	if len(t.delayed) == 0 {
		return 0, false
	}
	return t.delayed[0].due, true
}

// Ready returns one of those that are due and wait, which it does not any more.
func (t *failureTable) Ready(now int64) (position int64, ok bool) {
	if len(t.delayed) == 0 || t.delayed[0].due > now {
		return 0, false
	}
	position = heap.Pop(&t.delayed).(delay).position
	if _, parked := t.parked[position]; parked {
		delete(t.parked, position)
		t.ending--
	}
	return position, true
}

// Park makes a position wait until it is removed, nothing waits any more, or a time; NoEnd for none.
func (t *failureTable) Park(position int64, key string, until int64) {
	t.parked[position] = key
	if until != NoEnd {
		t.Wait(position, until)
		t.ending++
	}
}

// Key returns the key of a position that is parked.
func (t *failureTable) Key(position int64) (key string, ok bool) {
	key, ok = t.parked[position]
	return key, ok
}

// Waiting counts what waits until it is due, and what is parked.
func (t *failureTable) Waiting() (delayed, parked int) {
	return len(t.delayed) - t.ending, len(t.parked)
}

// StopWaiting makes nothing wait, neither for its time nor parked.
func (t *failureTable) StopWaiting() {
	t.delayed, t.ending = t.delayed[:0], 0
	clear(t.parked)
}

// Parked appends what is parked, by position. waiting counts what waits behind a key.
func (t *failureTable) Parked(dst []Parked, waiting func(key string) int) []Parked {
	begin := len(dst)
	for position, key := range t.parked {
		dst = append(dst, Parked{key, position, t.byPosition[position].Attempts, waiting(key)})
	}
	return ordered(dst, begin)
}

// Stopped appends what has had most attempts, by position and without keys.
func (t *failureTable) Stopped(dst []Parked, limit int) []Parked {
	begin := len(dst)
	for position, f := range t.byPosition {
		if f.Attempts >= limit {
			dst = append(dst, Parked{Position: position, Attempts: f.Attempts})
		}
	}
	return ordered(dst, begin)
}

func ordered(list []Parked, begin int) []Parked {
	slices.SortFunc(list[begin:], func(a, b Parked) int { return int(a.Position - b.Position) })
	return list
}

// Exhaust makes the message at a position undeliverable.
func (t *failureTable) Exhaust(l Undeliverable) {
	t.Dying.Add(l.Position, l.Position+1)
	t.deadLetters = append(t.deadLetters, l)
}

// TakeUndeliverable appends those that no call has returned before.
func (t *failureTable) TakeUndeliverable(dst []Undeliverable) []Undeliverable {
	dst = append(dst, t.deadLetters...)
	clear(t.deadLetters)
	t.deadLetters = t.deadLetters[:0]
	return dst
}

// MarkDeadLettered reports whether a position was dying, which it is not any more.
func (t *failureTable) MarkDeadLettered(position int64) bool {
	was := t.Dying.Contains(position)
	t.Dying.Remove(position, position+1)
	return was
}

// Spare makes nothing die any more: messages that failed too often are delivered again.
func (t *failureTable) Spare() {
	t.Dying.Clear()
	t.deadLetters = nil
}

// Forget removes what is known of the positions before one.
func (t *failureTable) Forget(before int64) {
	t.Dying.Remove(0, before)
	t.deadLetters = slices.DeleteFunc(t.deadLetters, func(l Undeliverable) bool { return l.Position < before })
	for p := range t.byPosition {
		if p < before {
			delete(t.byPosition, p)
		}
	}
}

// Clear forgets all failures and dead letters; waiting messages stay as they are.
func (t *failureTable) Clear() {
	t.Spare()
	clear(t.byPosition)
	t.latest = -1
}
