package embedded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
	"github.com/parley-chat/parley/server/store/storetest"
)

// The corpus in testdata is what was written by released formats. Every later head
// reads it. A new format adds to it; what it holds is never rewritten:
//
//	go test ./server/store/embedded -run Golden -add-golden v2
var addGolden = flag.String("add-golden", "", "add the present encodings to the corpus, under this name")

var goldenItems = map[string]store.Item{
	"empty": {},
	"strings": store.NewItem(store.Attr{Name: "name", Value: store.String("Tea ☕")},
		store.Attr{Name: "empty", Value: store.String("")},
		store.Attr{Name: "long", Value: store.String(strings.Repeat("long ", 60))}),
	"integers": store.NewItem(
		store.Attr{Name: "version", Value: store.Int(1<<62 + 7)}, store.Attr{Name: "negative", Value: store.Int(-5)},
		store.Attr{Name: "zero", Value: store.Int(0)},
		store.Attr{Name: "min", Value: store.Int(-1 << 63)}, store.Attr{Name: "max", Value: store.Int(1<<63 - 1)},
	),
	"bytes": store.NewItem(store.Attr{Name: "payload", Value: store.Bytes([]byte{0, 255, 10})},
		store.Attr{Name: "none", Value: store.Bytes(nil)}),
	"booleans": store.NewItem(store.Attr{Name: "archived", Value: store.Bool(true)},
		store.Attr{Name: "muted", Value: store.Bool(false)}),
	"lists": store.NewItem(store.Attr{Name: "members", Value: store.List([]string{"alice", "", "bob"})},
		store.Attr{Name: "none", Value: store.List(nil)}),
	"expiring": store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(1_900_000_000)}),
}

// golden is the content of the corpus' files, one line each: version, name, hex.
func golden(t *testing.T, file string, present map[string][]byte) (versions map[string]map[string][]byte) {
	t.Helper()
	name := filepath.Join("testdata", file)
	if *addGolden != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range sortedKeys(present) {
			if _, err := fmt.Fprintf(f, "%s %s %x\n", *addGolden, key, present[key]); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	versions = map[string]map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		b, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		if versions[fields[0]] == nil {
			versions[fields[0]] = map[string][]byte{}
		}
		versions[fields[0]][fields[1]] = b
	}
	if len(versions["v1"]) == 0 {
		t.Fatalf("%s does not have version 1", name)
	}
	return versions
}

func TestGoldenItems(t *testing.T) {
	present := map[string][]byte{}
	for name, it := range goldenItems {
		present[name] = itemcodec.Append(nil, it)
	}
	versions := golden(t, "items.txt", present)
	for version, written := range versions {
		for name, b := range written {
			it, err := itemcodec.Decode(b)
			if err != nil || !sameItem(it, goldenItems[name]) {
				t.Errorf("%s of %s reads as %v, %v", name, version, it, err)
			}
			// An encoding that changes is a new format.
			if int(b[0]) == itemcodec.Format && !bytes.Equal(b, present[name]) {
				t.Errorf("%s is written as %x, %s had %x", name, present[name], version, b)
			}
		}
	}
	if len(versions["v2"]) != len(goldenItems) {
		t.Errorf("version 2 has %d of %d items", len(versions["v2"]), len(goldenItems))
	}
}

func TestGoldenKeys(t *testing.T) {
	present := map[string][]byte{}
	for _, d := range store.Tables() {
		k := store.Key{Table: d.Name, PK: "chat_1#é"}
		if d.SortKey {
			k.SK = "0000000000000042"
		}
		present[string(d.Name)] = appendKey(nil, k)
	}
	present["expiry"] = appendExpiry(nil, 1_900_000_000, present[string(store.IdempotencyKeys)])
	for version, keys := range golden(t, "keys.txt", present) {
		for name, b := range keys {
			if !bytes.Equal(b, present[name]) {
				t.Errorf("key of %s is %x, %s had %x", name, present[name], version, b)
			}
		}
	}
}

// Directories are kept whole, so that a new version of Pebble has to read them.
func TestGoldenDirectories(t *testing.T) {
	if *addGolden != "" {
		writeDirectory(t, filepath.Join("testdata", "store-"+*addGolden+".tar.gz"))
	}
	files, err := filepath.Glob(filepath.Join("testdata", "store-*.tar.gz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no directories: %v", err)
	}
	for _, f := range files {
		clock := storetest.NewClock()
		mem := vfs.NewMem()
		unpack(t, f, mem)
		for range 2 { // as it was left, and as this version leaves it
			before := readGeneration(t, mem)
			s := open1(t, Options{Dir: "/data", FS: mem, Clock: clock.Now})
			if s.Generation() == before || !s.Holds(before, 0) {
				t.Errorf("%s: generation %s does not follow on %s", f, s.Generation(), before)
			}
			for name, want := range goldenItems {
				k := goldenKey(name)
				if it, err := s.Get(t.Context(), k, store.Strong); err != nil || !sameItem(it, want) {
					t.Errorf("%s: %s is %v, %v", f, k, it, err)
				}
			}
			p, err := s.Query(t.Context(), store.Query{Table: store.Messages, PK: "chat"})
			if err != nil || len(p.Rows) != 30 {
				t.Errorf("%s: %d messages, %v", f, len(p.Rows), err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A directory of the first format keeps its items; what is written into it has the present
// format, and says so before.
func TestGoldenDirectoryIsRaised(t *testing.T) {
	mem := vfs.NewMem()
	unpack(t, filepath.Join("testdata", "store-v1.tar.gz"), mem)
	clock := storetest.NewClock()
	format := func() string { return string(readFile(t, mem, "/data/FORMAT")) }
	s := open1(t, Options{Dir: "/data", FS: mem, Clock: clock.Now, ReadOnly: true})
	if err := s.Close(); err != nil || format() != "parley 1 1\n" {
		t.Fatalf("a reader left FORMAT %q, %v", format(), err)
	}
	broken := errors.New("no rename")
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRename && strings.HasPrefix(op.Path, "/data/FORMAT") {
			return broken
		}
		return nil
	}))
	if _, err := Open(Options{Dir: "/data", FS: fs, Clock: clock.Now}); !errors.Is(err, broken) {
		t.Fatalf("opened without a raised format: %v", err)
	}
	var wrote atomic.Bool // files are removed in the background, too
	fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasPrefix(op.Path, "/data/store/") &&
			!strings.HasSuffix(op.Path, "LOCK") {
			if wrote.Store(true); format() != "parley 3 3\n" {
				t.Errorf("%v of %s while FORMAT is %q", op.Kind, op.Path, format())
			}
		}
		return nil
	}))
	s = open1(t, Options{Dir: "/data", FS: fs, Clock: clock.Now})
	kept, changed := goldenKey("strings"), goldenKey("integers")
	it := store.NewItem(store.Attr{Name: "role", Value: store.String("owner")})
	if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: changed, Item: it},
		{Op: store.OpUpdate, Key: goldenKey("lists"), Update: store.Update{Set: it}}}}); err != nil {
		t.Fatal(err)
	}
	first := func(k store.Key) byte {
		v, closer, err := s.db.Get(appendKey(nil, k))
		if err != nil {
			t.Fatal(err)
		}
		defer closer.Close()
		return v[0]
	}
	a, b, c := first(kept), first(changed), first(goldenKey("lists"))
	if a != itemcodec.First || b != itemcodec.Format || c != itemcodec.Format || !wrote.Load() {
		t.Errorf("items have formats %d, %d and %d", a, b, c)
	}
	got, err := s.BatchGet(t.Context(), []store.Key{kept, changed, goldenKey("lists")}, store.Strong)
	lists := store.NewItem(append(slices.Clone(goldenItems["lists"]), it...)...)
	if err != nil || !sameItem(got[0], goldenItems["strings"]) || !sameItem(got[1], it) || !sameItem(got[2], lists) {
		t.Errorf("items are %v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func goldenKey(name string) store.Key {
	if name == "expiring" {
		return store.Key{Table: store.IdempotencyKeys, PK: name}
	}
	return store.Key{Table: store.Users, PK: name}
}

// generationFile stands beside a kept directory, for the test alone.
const generationFile = "/generation"

func readGeneration(t *testing.T, fs vfs.FS) string {
	t.Helper()
	return string(readFile(t, fs, generationFile))
}

// writeDirectory keeps a store of which one part is in tables and one in the log.
func writeDirectory(t *testing.T, name string) {
	t.Helper()
	mem := vfs.NewMem()
	s := open1(t, Options{Dir: "/data", FS: mem, Clock: storetest.NewClock().Now})
	message := func(i int) store.Write {
		return store.Write{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: "chat", SK: fmt.Sprintf("%04d", i)},
			Item: number(int64(i))}
	}
	var first, second []store.Write
	for i := range 25 {
		first, second = append(first, message(i)), append(second, message(i+10))
	}
	for _, n := range sortedKeys(goldenItems) {
		first = append(first, store.Write{Op: store.OpPut, Key: goldenKey(n), Item: goldenItems[n]})
	}
	second = append(second[:20], store.Write{Op: store.OpDelete, Key: store.Key{Table: store.Users, PK: "nobody"}})
	err := errors.Join(s.Transact(t.Context(), store.Plan{Writes: first}), s.db.Flush(),
		s.Transact(t.Context(), store.Plan{Writes: second}))
	writeFile(t, mem, generationFile, []byte(s.Generation()))
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	pack := tar.NewWriter(zip)
	for _, dir := range []string{"/", "/data", "/data/store"} {
		names, err := mem.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			full := path.Join(dir, n)
			if info, err := mem.Stat(full); err != nil || info.IsDir() || n == "LOCK" {
				continue
			}
			b := readFile(t, mem, full)
			if err := pack.WriteHeader(&tar.Header{Name: full, Mode: 0o600, Size: int64(len(b))}); err != nil {
				t.Fatal(err)
			}
			if _, err := pack.Write(b); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(pack.Close(), zip.Close(), os.WriteFile(name, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, name string, fs vfs.FS) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for pack := tar.NewReader(zip); ; {
		h, err := pack.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(pack)
		if err != nil {
			t.Fatal(err)
		}
		if err := fs.MkdirAll(path.Dir(h.Name), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, fs, h.Name, b)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
