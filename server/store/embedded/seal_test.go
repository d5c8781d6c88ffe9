package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

func openSealed(t *testing.T, dir, accept string) (*Store, error) {
	t.Helper()
	s, err := Open(Options{Dir: dir, AcceptLoss: accept, sealEvery: 5 * time.Millisecond})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// sealed writes rows, with probes among them, and seals them all.
func sealed(t *testing.T, s *Store, from, to int64) {
	t.Helper()
	probes := func() uint64 {
		said, _, err := readSeal(s.opts.FS, s.opts.Dir)
		testkit.Must(t, err)
		return said.probes
	}
	for n := from; n < to; n++ {
		before := probes()
		key := store.Key{Table: store.Events, PK: "chat", SK: time.Unix(n, 0).UTC().Format(time.RFC3339)}
		testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: number(n)}}))
		if n%10 == 0 {
			testkit.Eventually(t, "a written row is sealed", func() bool { return probes() > before })
		}
	}
	testkit.Must(t, s.putSeal())
}

func rows(t *testing.T, s *Store) (n int) {
	t.Helper()
	q := store.Query{Table: store.Events, PK: "chat", Consistency: store.Strong}
	for _, err := range store.QueryAll(t.Context(), s, q) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// Whatever is removed or cut of the store's files, it is opened with all rows or not at
// all, and then says in one line what is to be done.
func TestMissingFilesAreNoticed(t *testing.T) {
	for _, stopped := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "data")
		s, err := openSealed(t, dir, "")
		if err != nil {
			t.Fatal(err)
		}
		sealed(t, s, 0, 60)
		if err := s.db.Flush(); err != nil {
			t.Fatal(err)
		}
		sealed(t, s, 60, 120)
		if stopped {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		killed := filepath.Join(t.TempDir(), "data")
		s.sealing.Lock() // a copy is not a moment: SEAL.new may go while it is made
		err = os.CopyFS(killed, os.DirFS(dir))
		s.sealing.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(killed, "store", "*"))
		if err != nil || len(files) < 5 {
			t.Fatal(files, err)
		}
		for _, name := range append(files, killed+"/store", killed+"/FORMAT", killed+"/SEAL") {
			for _, cut := range []float64{0, 0.3, 0.7, 0.99} { // 0: removed
				to := filepath.Join(t.TempDir(), "data")
				if err := os.CopyFS(to, os.DirFS(killed)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(to, strings.TrimPrefix(name, killed))
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if cut == 0 {
					err = os.RemoveAll(path)
				} else if !info.IsDir() {
					err = os.Truncate(path, int64(float64(info.Size())*cut))
				}
				if err != nil {
					t.Fatal(err)
				}
				s, err := openSealed(t, to, "")
				switch {
				case err != nil && strings.Contains(err.Error(), "\n"):
					t.Errorf("%s cut to %v: more than a line: %v", filepath.Base(name), cut, err)
				case err == nil && rows(t, s) != 120:
					t.Errorf("%s cut to %v: %d of 120 rows, without a word", filepath.Base(name), cut, rows(t, s))
				}
				if err == nil {
					_ = s.Close()
				}
			}
		}
	}
}

// What is left is used when that is said, under a new generation and once.
func TestLossIsAccepted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := openSealed(t, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	sealed(t, s, 0, 60)
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	sealed(t, s, 60, 120)
	generation := s.Generation()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "store", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	for _, log := range logs {
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	for _, accept := range []string{"", "another"} {
		if _, err := openSealed(t, dir, accept); !errors.Is(err, ErrLost) ||
			!strings.Contains(err.Error(), "--accept-loss "+generation) {
			t.Fatalf("with %q: %v", accept, err)
		}
	}
	if s, err = openSealed(t, dir, generation); err != nil {
		t.Fatal(err)
	}
	renewed := s.Generation()
	if renewed == generation || rows(t, s) < 60 {
		t.Errorf("generation %s, %d rows", renewed, rows(t, s))
	}
	sealed(t, s, 200, 220)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openSealed(t, dir, generation); err != nil || !s.Holds(renewed, 0) || s.Holds(generation, 0) {
		t.Fatalf("the second start: %v", err)
	}
}

// A crash between the new generation and its seal is none of a loss.
func TestRenewIsCutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := openSealed(t, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	sealed(t, s, 0, 20)
	before, err := os.ReadFile(filepath.Join(dir, "SEAL"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(); err != nil {
		t.Fatal(err)
	}
	renewed := s.Generation()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "SEAL"), before, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = openSealed(t, dir, ""); err != nil || !s.Holds(renewed, 0) {
		t.Fatal(err)
	}
}

// Nor is one between the generation of a start and its seal; but what is missing besides is noticed.
func TestStartIsCutOff(t *testing.T) {
	for _, missing := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "data")
		s, err := openSealed(t, dir, "")
		testkit.Must(t, err)
		sealed(t, s, 0, 20)
		testkit.Must(t, s.Close())
		before, err := os.ReadFile(filepath.Join(dir, "SEAL"))
		testkit.Must(t, err)
		s, err = openSealed(t, dir, "")
		testkit.Must(t, err)
		if missing {
			testkit.Must(t, s.db.DeleteRange(probeKey(2), probeKey(4), nil))
		}
		testkit.Must(t, s.Close())
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "SEAL"), before, 0o600))
		if s, err = openSealed(t, dir, ""); missing != errors.Is(err, ErrLost) || !missing && err != nil {
			t.Errorf("missing %v: %v", missing, err)
		} else if !missing {
			testkit.Must(t, s.Close())
		}
	}
}
