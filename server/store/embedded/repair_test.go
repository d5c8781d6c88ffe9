package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// harms are kinds of damage to a file.
var harms = []struct {
	name string
	do   func(path string) error
}{
	{"halved", changed(func(b []byte) []byte { return b[:len(b)/2] })},
	{"a byte cut off", changed(func(b []byte) []byte { return b[:len(b)-1] })},
	{"a bit flipped", changed(func(b []byte) []byte { b[len(b)/2] ^= 4; return b })},
	{"first bit flipped", changed(func(b []byte) []byte { b[0] ^= 1; return b })},
	{"last bit flipped", changed(func(b []byte) []byte { b[len(b)-1] ^= 1; return b })},
	{"4 KB zeroed", changed(func(b []byte) []byte {
		at := len(b) / 2 &^ 4095
		clear(b[at:min(len(b), at+4096)])
		return b
	})},
	{"two blocks flipped", changed(func(b []byte) []byte { b[len(b)/4] ^= 1; b[len(b)*2/3] ^= 1; return b })},
	{"emptied", func(path string) error { return os.Truncate(path, 0) }},
	{"removed", os.Remove},
}

// changed changes the content of a file, up to the zeros behind it that were allocated ahead.
func changed(f func([]byte) []byte) func(path string) error {
	return func(path string) error {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := len(strings.TrimRight(string(b), "\x00"))
		if n == 0 {
			return errEmpty
		}
		return os.WriteFile(path, append(f(b[:n:n]), b[n:]...), 0o600)
	}
}

var errEmpty = errors.New("the file is empty")

// worn is the directory of a store that was killed, with tables on several levels, deletions and newer
// values of some rows in each, and what it has.
func worn(t *testing.T) (dir string, want map[string]string) {
	t.Helper()
	live := t.TempDir()
	s := testkit.Value(openSealed(t, live, ""))(t)
	want = map[string]string{}
	random := rand.New(rand.NewPCG(1, 2))
	write := func(n, text string, op store.Op) {
		key := store.Key{Table: store.Events, PK: "chat", SK: n}
		w := store.Write{Op: op, Key: key}
		if delete(want, n); op == store.OpPut {
			w.Item, want[n] = store.NewItem(store.Attr{Name: "text", Value: store.String(text)}), text
		}
		testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{w}))
	}
	for round := range 5 {
		for i := range 120 {
			n := fmt.Sprintf("%04d", (round*90+i)%400)
			text := make([]byte, 300)
			for j := range text {
				text[j] = byte('a' + random.IntN(26))
			}
			write(n, fmt.Sprint(round, string(text)), store.OpPut)
			if i%11 == 5 {
				write(fmt.Sprintf("%04d", random.IntN(400)), "", store.OpDelete)
			}
		}
		records := []byte{spaceRecords, 't', 0, byte(round)}
		testkit.Must(t, s.db.Set(records, []byte("value"), pebble.Sync))
		if round > 0 {
			from, to := []byte{spaceRecords, 't', 0, 0}, []byte{spaceRecords, 't', 0, byte(round)}
			testkit.Must(t, s.db.DeleteRange(from, to, pebble.Sync))
		}
		testkit.Must(t, s.putSeal())
		if round < 3 { // of another table of the highest level, all would be merged
			testkit.Must(t, s.db.Flush())
		}
		if round == 1 {
			testkit.Must(t, s.db.Compact(t.Context(), []byte{0}, []byte{255}, false))
		}
	}
	dir = filepath.Join(t.TempDir(), "data")
	s.sealing.Lock() // a copy is not a moment: SEAL.new may go while it is made
	defer s.sealing.Unlock()
	testkit.Must(t, os.CopyFS(dir, os.DirFS(live)))
	return dir, want
}

// contents are the rows of a store, and how many records it has.
func contents(t *testing.T, s *Store) (have map[string]string, records int) {
	t.Helper()
	have = map[string]string{}
	q := store.Query{Table: store.Events, PK: "chat", Consistency: store.Strong}
	for row, err := range store.QueryAll(t.Context(), s, q) {
		testkit.Must(t, err)
		have[row.Key.SK] = row.Item.Get("text").Str()
	}
	from, to := RecordRange()
	it := testkit.Value(s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to}))(t)
	for ok := it.First(); ok; ok = it.Next() {
		records++
	}
	testkit.Must(t, it.Close())
	return have, records
}

// With any damage to a file, the store opens with all that it had, or refuses and names the
// repair. The repair makes a store that opens, with another generation, and names what it lacks. It
// keeps the damaged one.
func TestRepair(t *testing.T) {
	t.Parallel()
	origin, want := worn(t)
	var files []string
	for _, pattern := range []string{"store/*", "SEAL", "FORMAT"} {
		files = append(files, testkit.Value(filepath.Glob(filepath.Join(origin, pattern)))(t)...)
	}
	tables, refused, incomplete, lost := 0, 0, 0, 0
	for _, path := range files {
		name := testkit.Value(filepath.Rel(origin, path))(t)
		if strings.HasSuffix(name, ".sst") {
			tables++
		}
		for _, harm := range harms {
			dir := filepath.Join(t.TempDir(), "data")
			testkit.Must(t, os.CopyFS(dir, os.DirFS(origin)))
			if err := harm.do(filepath.Join(dir, name)); errors.Is(err, errEmpty) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			c := repairCase{dir: dir, what: name + " " + harm.name, want: want}
			c.run(t)
			if c.refused {
				refused++
			}
			if c.missing > 0 {
				incomplete++
				lost += c.missing
			}
		}
	}
	t.Logf("%d tables; %d refusals, %d repaired stores lack %d rows of %d each", tables, refused, incomplete, lost, len(want))
	if tables < 2 || refused < 20 {
		t.Errorf("%d tables, %d refusals", tables, refused)
	}
}

type repairCase struct {
	dir, what string
	want      map[string]string
	refused   bool
	missing   int // rows
}

func (c *repairCase) run(t *testing.T) {
	t.Helper()
	s, err := Open(Options{Dir: c.dir})
	if c.refused = err != nil; c.refused {
		if !strings.Contains(err.Error(), "check --repair") && !strings.Contains(err.Error(), "needs format") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the refusal names no repair: %v", c.what, err)
		}
	} else {
		testkit.Must(t, s.Close())
	}
	r, err := Repair(t.Context(), Options{Dir: c.dir})
	if err != nil {
		if !strings.Contains(err.Error(), "needs format") {
			t.Errorf("%s: repair: %v", c.what, err)
		}
		return
	}
	if c.refused && r.Why == nil {
		t.Errorf("%s: nothing was repaired", c.what)
	}
	if r.Why != nil {
		if _, err := os.Stat(r.Aside); err != nil {
			t.Errorf("%s: the damaged store: %v", c.what, err)
		}
	}
	if again, err := Repair(t.Context(), Options{Dir: c.dir}); err != nil || again.Why != nil {
		t.Errorf("%s: repaired once more: %v %v", c.what, again, err)
	}
	s, err = Open(Options{Dir: c.dir})
	if err != nil {
		t.Errorf("%s: after the repair: %v", c.what, err)
		return
	}
	defer func() { testkit.Must(t, s.Close()) }()
	have, records := contents(t, s)
	for n, text := range c.want {
		if have[n] != text {
			c.missing++
		}
		delete(have, n)
	}
	wrong := len(have) // deleted rows that are back
	if (c.missing > 0 || wrong > 0 || records != 1) && (r.Why == nil || len(r.Lost) == 0 && !errors.Is(r.Why, ErrLost)) {
		t.Errorf("%s: %d rows and %d deletions are silently lost, %d records: %+v", c.what, c.missing, wrong, records, r)
	}
	if testing.Verbose() && r.Why != nil {
		t.Logf("%s: %d rows missing, %d returned, %d records; %s", c.what, c.missing, wrong, records, strings.ReplaceAll(strings.Join(r.Lost, " | "), c.dir, "D"))
	}
	if r.Why != nil && s.Generation() == "" {
		t.Errorf("%s: no generation", c.what)
	}
	slices.Sort(r.Lost)
}

// A bit that is flipped in a log costs the write that it is in and no other one, and the repair says
// so, also in the last block of the log.
func TestFlippedBitInALog(t *testing.T) {
	t.Parallel()
	origin, want := worn(t)
	logs := testkit.Value(filepath.Glob(filepath.Join(origin, "store", "*.log")))(t)
	path := slices.MaxFunc(logs, func(a, b string) int { return strings.Compare(a, b) })
	name := testkit.Value(filepath.Rel(origin, path))(t)
	b := testkit.Value(os.ReadFile(path))(t)
	end := len(strings.TrimRight(string(b), "\x00"))
	worse := 0
	for at := end - 2_000; at < end-1_000; at += 37 { // several writes follow
		dir := filepath.Join(t.TempDir(), "data")
		testkit.Must(t, os.CopyFS(dir, os.DirFS(origin)))
		flipped := bytes.Clone(b)
		flipped[at] ^= 1 << (at % 8)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), flipped, 0o600))
		r := testkit.Value(Repair(t.Context(), Options{Dir: dir}))(t)
		s := testkit.Value(Open(Options{Dir: dir}))(t)
		have, _ := contents(t, s)
		testkit.Must(t, s.Close())
		missing := 0
		for n, text := range want {
			if have[n] != text {
				missing++
			}
		}
		if missing > 1 || len(r.Lost) != 1 || !strings.Contains(r.Lost[0], filepath.Base(name)) {
			worse++
			t.Logf("byte %d: %d rows are missing, and the repair names %q", at, missing, r.Lost)
		}
	}
	if worse > 2 { // of 28: in the length of a write, which leads nowhere then
		t.Errorf("%d bits cost more than the write that they are in, or nothing is said of it", worse)
	}
}

// A bit that is flipped anywhere in a table is met later, or the store is refused in one line that
// names the repair, and the repair then finds it.
func TestFlippedBitInATable(t *testing.T) {
	t.Parallel()
	origin, _ := worn(t)
	refused := 0
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(origin, "store", "*.sst")))(t) {
		name := testkit.Value(filepath.Rel(origin, path))(t)
		b := testkit.Value(os.ReadFile(path))(t)
		for part := range 10 {
			at := len(b) * part / 10
			dir := filepath.Join(t.TempDir(), "data")
			testkit.Must(t, os.CopyFS(dir, os.DirFS(origin)))
			flipped := bytes.Clone(b)
			flipped[at] ^= 4
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), flipped, 0o600))
			s, err := Open(Options{Dir: dir})
			if err == nil {
				testkit.Must(t, s.Close())
				continue
			}
			refused++
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "check --repair") ||
				strings.ContainsAny(err.Error(), "\n<") {
				t.Errorf("%s, byte %d of %d: %v", name, at, len(b), err)
			}
			if r, err := Repair(t.Context(), Options{Dir: dir}); err != nil || r.Why == nil {
				t.Errorf("%s, byte %d of %d: repair: %+v %v", name, at, len(b), r, err)
			}
		}
	}
	if refused == 0 {
		t.Error("no bit was met by an opening")
	}
	t.Logf("%d refusals", refused)
}

// A repair that is interrupted at any of its steps leaves the damaged store, or a new one that the next
// start puts in its place.
func TestInterruptedRepair(t *testing.T) {
	t.Parallel()
	origin, want := worn(t)
	testkit.Must(t, os.Remove(testkit.Value(filepath.Glob(filepath.Join(origin, "store", "marker.manifest.*")))(t)[0]))
	repaired := filepath.Join(t.TempDir(), "data")
	testkit.Must(t, os.CopyFS(repaired, os.DirFS(origin)))
	r := testkit.Value(Repair(t.Context(), Options{Dir: repaired}))(t)
	rename := func(dir, from, to string) {
		testkit.Must(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
	}
	for name, undo := range map[string]func(dir string){
		"while it writes": func(dir string) {
			rename(dir, "store", "store"+unfinishedSuffix)
			rename(dir, filepath.Base(r.Aside), "store")
		},
		"when it has written": func(dir string) {
			rename(dir, "store", "store"+finishedSuffix)
			rename(dir, filepath.Base(r.Aside), "store")
		},
		"between the renames": func(dir string) { rename(dir, "store", "store"+finishedSuffix) },
		"at its end":          func(string) {},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		testkit.Must(t, os.CopyFS(dir, os.DirFS(repaired)))
		seal := testkit.Value(os.ReadFile(filepath.Join(origin, sealFile)))(t)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, sealFile), seal, 0o600))
		if name == "at its end" {
			testkit.Must(t, os.Remove(filepath.Join(dir, sealFile)))
		}
		undo(dir)
		s, err := Open(Options{Dir: dir})
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			again := testkit.Value(Repair(t.Context(), Options{Dir: dir}))(t)
			if again.Why == nil {
				t.Errorf("%s: nothing was repaired", name)
			}
			s = testkit.Value(Open(Options{Dir: dir}))(t)
		}
		if have, _ := contents(t, s); !maps.Equal(have, want) {
			t.Errorf("%s: %d rows of %d", name, len(have), len(want))
		}
		testkit.Must(t, s.Close())
	}
}

// A store opens with a damaged block in a table. The damage is reported once the block is read, with
// what helps.
func TestDamagedBlock(t *testing.T) {
	t.Parallel()
	dir, _ := worn(t)
	paths := testkit.Value(filepath.Glob(filepath.Join(dir, "store", "*.sst")))(t)
	for _, path := range paths {
		testkit.Must(t, changed(func(b []byte) []byte { b[len(b)/2] ^= 4; return b })(path))
	}
	var log bytes.Buffer
	s := testkit.Value(Open(Options{Dir: dir, ReadOnly: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
	defer func() { testkit.Must(t, s.Close()) }()
	if s.Damaged() { // read-only, so that nothing merges the tables
		t.Error("it is damaged before it is read")
	}
	var err error
	q := store.Query{Table: store.Events, PK: "chat", Consistency: store.Strong}
	for _, e := range store.QueryAll(t.Context(), s, q) {
		err = errors.Join(err, e)
	}
	if !errors.Is(err, store.ErrCorrupt) || !s.Damaged() || !strings.Contains(log.String(), "check --repair") {
		t.Errorf("%v, damaged %v, the log says %s", err, s.Damaged(), log.String())
	}
}
