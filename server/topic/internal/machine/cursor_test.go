package machine

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var addGolden = flag.Bool("add-golden", false, "add the present encodings to the corpus")

func set(runs ...Run) *Set {
	s := SetOf(runs...)
	return &s
}

// golden are cursors of each form that there was.
func golden() map[string]*Cursor {
	plain := func() *Cursor {
		return &Cursor{
			Generation: 3, Start: 7, Floor: 1 << 33, Processed: 100, Filtered: 5, Failed: 9, Missed: 2,
			Required: set(Run{From: 7, To: 90}, Run{From: 1 << 33, To: NoEnd}),
			Optional: set(Run{From: 90, To: 100}),
			Acked:    set(Run{From: 7, To: 60}, Run{From: 61, To: 80}),
			Failures: []SavedFailure{{60, 1, time.Unix(1_800_000_000, 0).UnixNano()},
				{85, 12, time.Unix(1_800_000_030, 0).UnixNano()}},
			History: &Set{},
		}
	}
	backfill, moved, none := plain(), plain(), plain()
	backfill.Backfill, backfill.History = 4, set(Run{From: 1, To: 5})
	moved.Moves = 300
	lost := plain()
	lost.Dead, lost.Owed, lost.Moves = true, set(Run{From: 60, To: 61}, Run{From: 1 << 33, To: NoEnd}), 2
	lost.released = &released{gone: Ledger{1, 2, 300, 4, 5, 1 << 40}}
	for c := range lost.released.of {
		lost.released.of[c] = *set(Run{From: int64(c), To: int64(c) + 2}, Run{From: 20, To: 1 << 20})
	}
	lost.Missed = 300
	expired := plain()
	expired.Owed, expired.released = &Set{}, &released{gone: Ledger{ByRetention: 2, ByExpiry: 1 << 33}}
	none.Failures, none.Acked = nil, &Set{}
	return map[string]*Cursor{
		"plain": plain(), "backfill": backfill, "moved": moved, "nothing failed": none, "released": lost,
		"expired": expired,
	}
}

// HQ-T6: what earlier versions stored of groups is read by all later ones, backfills included. A
// form that changes is a new version, and what is in the corpus is never rewritten:
//
//	go test ./server/topic/internal/machine -run Golden -add-golden
func TestGoldenCursors(t *testing.T) {
	path := filepath.Join("testdata", "cursors.txt")
	old, err := os.ReadFile(path)
	if err != nil && !*addGolden {
		t.Fatal(err)
	}
	all, seen := golden(), map[string]bool{}
	for line := range strings.Lines(string(old)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		b, err := hex.DecodeString(text)
		if err != nil || all[name] == nil {
			t.Fatalf("%s: %v", line, err)
		}
		got, err := DecodeCursor(b, 1<<16)
		if err != nil {
			t.Errorf("%s cannot be read: %v", name, err)
			continue
		}
		if want := all[name]; !reflect.DeepEqual(describe(got), describe(want)) {
			t.Errorf("%s is read as\n%v, not\n%v", name, describe(got), describe(want))
		}
		if now := all[name].Append(nil); bytes.Equal(now, b) {
			seen[name] = true
		}
		for i := range b {
			if _, err := DecodeCursor(b[:i], 1<<16); err == nil {
				t.Errorf("%d of %d bytes of %s are enough", i, len(b), name)
			}
		}
	}
	for name, c := range all {
		if seen[name] {
			continue
		}
		if !*addGolden {
			t.Errorf("%s is written in another form than any in the corpus", name)
			continue
		}
		old = fmt.Appendf(old, "%s: %x\n", name, c.Append(nil))
	}
	if *addGolden {
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// describe makes cursors comparable.
func describe(c *Cursor) []any {
	owed, lost := c.Owed, c.released
	if owed == nil {
		owed, lost = &Set{}, &released{gone: Ledger{ByRetention: c.Missed}}
	}
	return []any{c.Generation, c.Start, c.Floor, c.Processed, c.Filtered, c.Failed, c.Missed, c.Required.Runs(),
		c.Optional.Runs(), c.Acked.Runs(), fmt.Sprint(c.Failures), c.Backfill, fmt.Sprint(c.History.Runs()), c.Moves,
		owed.Runs(), lost.gone, fmt.Sprint(lost.of)}
}

// What is of no version is refused.
func TestOtherVersions(t *testing.T) {
	for _, name := range []string{"released", "expired"} {
		b := golden()[name].Append(nil)
		for version := range 256 {
			b[0] = byte(version)
			if _, err := DecodeCursor(b, 1<<16); (err == nil) != (version == ledgerVersion) {
				t.Errorf("%s, version %d: %v", name, version, err)
			}
		}
	}
}
