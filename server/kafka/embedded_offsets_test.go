package kafka

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// readGroup reads n records as the only member of a group and commits them.
func readGroup(t *testing.T, addr string, n int) (values []string) {
	t.Helper()
	s, err := NewSession(SessionConfig{
		Addr: addr, Group: "reader", Topics: []string{ChatsCreated}, Assigned: func([]Partition) {},
		Gone: func([]Partition, bool) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := limited(t)
	for len(values) < n {
		batch, err := s.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%q, then %v", values, err)
		}
		next := map[Partition]int64{}
		for p, b := range batch {
			for _, r := range b.Records {
				values = append(values, string(r.Value))
				next[p] = r.Offset + 1
			}
			if b.End < next[p] {
				t.Fatalf("the end is %d after offset %d", b.End, next[p])
			}
		}
		if err := s.Commit(context.WithoutCancel(ctx), next); err != nil {
			t.Fatal(err)
		}
		s.Done()
	}
	return values
}

// A power loss took records that a group had committed, but not its commits: what
// is published instead reaches the group.
func TestCommitsBeyondTheEnd(t *testing.T) {
	dir := t.TempDir()
	b := openBroker(t, dir)
	for _, v := range []string{"1", "2", "3", "4"} {
		publish(t, b.Addr(), v)
	}
	if got := readGroup(t, b.Addr(), 4); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Fatalf("read %q", got)
	}
	dir = crash(t, dir)
	path := filepath.Join(dir, "partitions", ChatsCreated+"-3", "0.dat")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := 0
	for range 2 { // a record and the end of its transaction
		end += 12 + int(binary.BigEndian.Uint32(whole[end+8:]))
	}
	if err := os.WriteFile(path, whole[:end], 0o600); err != nil {
		t.Fatal(err)
	}
	b = openBroker(t, dir)
	if got, want := b.committed("reader", ChatsCreated, 3),
		b.cluster.PartitionInfo(ChatsCreated, 3).HighWatermark; got != want || want != 2 {
		t.Fatalf("committed is %d, the end %d", got, want)
	}
	// The reset survives a crash of its own, and is no hindrance to what follows.
	b = openBroker(t, crash(t, dir))
	publish(t, b.Addr(), "2", "3", "4", "5")
	if got := readGroup(t, b.Addr(), 4); !slices.Equal(got, []string{"2", "3", "4", "5"}) {
		t.Fatalf("after the loss: %q", got)
	}
}
