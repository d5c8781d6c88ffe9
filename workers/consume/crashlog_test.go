package consume

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

var part = kafka.Partition{Topic: "chats.created", ID: 3}

func newLog() *crashLog {
	clock := func() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }
	return &crashLog{Store: storetest.NewMemory(clock), Clock: clock, Logger: slog.New(slog.DiscardHandler), Group: "g",
		Consumer: "c"}
}

// next claims the partition for another process.
func next(t *testing.T, l *crashLog, first int64) *quarantine {
	t.Helper()
	l.Consumer += "'"
	return ownedClaim(t, l, first)
}

// ownedClaim claims the partition, which has records from an offset up to 5000.
func ownedClaim(t *testing.T, l *crashLog, first int64) *quarantine {
	t.Helper()
	list, err := l.Claim(t.Context(), []crashClaim{{Partition: part, First: first, End: 5000}})
	if err != nil || len(list) != 1 {
		t.Fatalf("the claim returned %v (%v), expected one quarantine", list, err)
	}
	return list[0]
}

// Only an owner that ended without a release leaves suspects, and only a suspect that was
// handled alone counts as the cause of a crash. Counts survive several owners.
func TestCrashesAreCounted(t *testing.T) {
	l := newLog()
	if q := next(t, l, 10); q != nil {
		t.Errorf("the first owner has the quarantine %+v, expected none", q)
	}
	if q := ownedClaim(t, l, 10); q != nil {
		t.Errorf("a process that lost the partition and did not end has the quarantine %+v, expected none", q)
	}
	if q := next(t, l, 10); q == nil || q.Crashes(10) != 0 {
		t.Errorf("after an owner that had many records in work: %+v", q)
	}
	for n := 1; n <= 3; n++ {
		testkit.Must(t, l.RecordSuspect(t.Context(), part, 12))
		if q := next(t, l, 11); q.Crashes(12) != n || q.Crashes(11) != 0 {
			t.Errorf("after %d crashes: %+v", n, q)
		}
	}
	testkit.Must(t, l.ClearSuspect(t.Context(), part))
	if q := next(t, l, 11); q.Crashes(12) != 3 {
		t.Errorf("after a kill while no record was alone: %+v", q)
	}
	testkit.Must(t, l.RecordSuspect(t.Context(), part, 12))
	if q := next(t, l, 13); q.Crashes(12) != 0 {
		t.Errorf("the suspect was committed: %+v", q)
	}
	l.Release([]kafka.Partition{part})
	if q := next(t, l, 13); q != nil {
		t.Errorf("after a release: %+v", q)
	}
}

// At most one round of records is suspect, whatever their offsets, and none that was published
// after the crash. A record that is read again stays a suspect.
func TestSuspects(t *testing.T) {
	l := newLog()
	ownedClaim(t, l, 100)
	q := next(t, l, 100)
	for n := range int64(500) {
		for _, time := range []string{"the first time", "again"} {
			if !q.Suspect(100 + 3*n) {
				t.Fatalf("record %d is not suspect %s", n, time)
			}
		}
	}
	if q.Suspect(100 + 3*500) {
		t.Error("record 501 is suspect, expected up to 500")
	}
	if !q.Suspect(100) {
		t.Error("a record that is read again is not suspect any more")
	}
	if q = next(t, l, 4999); !q.Suspect(4999) || q.Suspect(5000) {
		t.Error("expected record 4999 to be suspect and 5000, published after the crash, not")
	}
}
