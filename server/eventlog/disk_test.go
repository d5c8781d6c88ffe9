//go:build !windows

package eventlog

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// du is what a directory takes on the disk, in bytes.
func du(t *testing.T, dir string) (n int64) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // the engine removes files meanwhile
		}
		if info, err := d.Info(); err == nil {
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	}))
	return n
}

// Each kind of producer but chats writes four times its share, with readers that run and with readers
// that have stopped; what a full topic refuses is not written. The log keeps its share, and so does the disk.
func TestDiskSpace(t *testing.T) {
	const size = 400_000 // of a record
	racetest.SkipSerial(t)
	for kind, share := range map[kafka.Kind]int64{kafka.DeadLetterKind: 8 << 20, kafka.Searches: 16 << 20,
		kafka.SearchDeadLetterKind: 4 << 20} {
		for _, c := range []struct {
			name           string
			running, young bool
		}{
			{"running", true, false}, {"stopped", false, false},
			{"stopped, and faster than the topic's records get old", false, true},
		} {
			t.Run(fmt.Sprintf("%d/%s", kind, c.name), func(t *testing.T) {
				dir := t.TempDir()
				s := testkit.Value(embedded.Open(embedded.Options{Dir: dir}))(t)
				defer func() { testkit.Must(t, s.Close()) }()
				now := time.Now()
				committed := map[kafka.Partition]int64{}
				topic := kafka.Topic{Name: "events", Partitions: 2, Kind: kind, Readers: []string{"readers"}}
				l := testkit.Value(Open(t.Context(), Config{Store: s, Log: commitlog.NewLocal(records.Of(s), time.Now),
					Topics: []kafka.Topic{topic}, MaxBytes: 64 << 20, Clock: func() time.Time { return now },
					Committed: func(context.Context, string) (map[kafka.Partition]int64, error) { return committed, nil }}))(t)
				before := du(t, dir)
				rng := rand.NewChaCha8([32]byte{})
				room := testkit.Value(l.Trim(t.Context()))(t)[kind]
				refused, highest := 0, int64(0)
				for n := int64(0); n < 4*share; n += size {
					value := make([]byte, size)
					_, _ = rng.Read(value)
					r := plain("events", int32(rng.Uint64()%2), string(value))
					if room <= 0 {
						refused++
					} else {
						testkit.Must(t, l.Publish(t.Context(), []Publication{{Records: []*kafka.Record{r}}}))
						if c.running {
							committed[kafka.Partition{Topic: "events", ID: r.Partition}] = r.Offset + 1
						}
					}
					if room -= size; n%(share/8) < size { // as the keeper does, when half of the room is used up
						if !c.young {
							now = now.Add(time.Minute + time.Second)
						}
						room = testkit.Value(l.Trim(t.Context()))(t)[kind]
						highest = max(highest, l.Bytes())
					}
				}
				if highest > share+2*size || l.Bytes() > share+2*size || c.running && l.LostToReaders() > 0 ||
					!c.running && !(c.young && kind == kafka.Searches) && l.LostToReaders() == 0 {
					t.Errorf("%d bytes at most, %d now; readers have lost %d", highest, l.Bytes(), l.LostToReaders())
				}
				// Beside the share: what was removed since space was given back last, and the engine's own logs.
				// Files go in the background.
				testkit.Eventually(t, "the disk has the share and 20 MiB", func() bool { return du(t, dir)-before < share+20<<20 })
				if c.young && kind == kafka.Searches && refused < 400*100_000/size {
					t.Errorf("the topic refused %d records", refused)
				}
			})
		}
	}
}
