package kafka

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// crash returns a copy of a running broker's directory: what a killed process
// leaves.
func crash(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// begin leaves a transaction open.
func begin(t *testing.T, addr string, value string) {
	t.Helper()
	c, err := NewTransactional(addr, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &Record{Topic: ChatsCreated, Partition: 3, Value: []byte(value)}
	if err := c.ProduceSync(limited(t), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// What a producer commits after a crash is read, although the crash cut off its
// transaction, which stays unseen over further crashes.
func TestTransactionCutOffByCrash(t *testing.T) {
	dir := t.TempDir()
	b := openBroker(t, dir)
	publish(t, b.Addr(), "1", "2")
	begin(t, b.Addr(), "lost")

	dir = crash(t, dir)
	if list, err := logdir.OpenTxns(dir); err != nil || len(list) != 1 || list[0].Topic != ChatsCreated ||
		list[0].ID != 3 {
		t.Fatalf("open: %v %v", list, err)
	}
	b = openBroker(t, dir)
	publish(t, b.Addr(), "3", "4")
	if got := read(t, b.Addr(), 4); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Fatalf("after the crash: %q", got)
	}

	dir = crash(t, dir)
	if list, err := logdir.OpenTxns(dir); err != nil || len(list) != 0 {
		t.Fatalf("open: %v %v", list, err)
	}
	b = openBroker(t, dir)
	publish(t, b.Addr(), "5")
	if got := read(t, b.Addr(), 5); !slices.Equal(got, []string{"1", "2", "3", "4", "5"}) {
		t.Fatalf("after two crashes: %q", got)
	}
}

// A torn end and foreign names are no transaction and no error.
func TestOpenTransactionsOfDamagedLog(t *testing.T) {
	dir := t.TempDir()
	b := openBroker(t, dir)
	publish(t, b.Addr(), "1")
	begin(t, b.Addr(), "lost")
	dir = crash(t, dir)
	path := filepath.Join(dir, "partitions", ChatsCreated+"-3", "0.dat")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"notes", "a-b", "%zz-1"} {
		if err := os.MkdirAll(filepath.Join(dir, "partitions", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Whole at its end or after its first batch there is an open transaction, torn
	// in the batch after the marker there is none.
	var ends []int
	for at := 0; at < len(whole); {
		at += 12 + int(binary.BigEndian.Uint32(whole[at+8:]))
		ends = append(ends, at)
	}
	if len(ends) != 3 {
		t.Fatalf("batches end at %v", ends)
	}
	for n := len(whole); n >= 0; n-- {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		want := n == len(whole) || n >= ends[0] && n < ends[1]
		if list, err := logdir.OpenTxns(dir); err != nil || (len(list) == 1) != want {
			t.Fatalf("%d of %d bytes: %v %v", n, len(whole), list, err)
		}
	}
}
