package upgrade_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		runChild()
	}
	os.Exit(m.Run())
}

// fill lets processes of the old broker write a log, and kills most of them.
func fill(t *testing.T, dir string, rng *rand.Rand) {
	t.Helper()
	self := testkit.Value(os.Executable())(t)
	for range 1 + rng.IntN(3) {
		steps := 20 + rng.IntN(60)
		child := exec.CommandContext(t.Context(), self)
		child.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprintf("%s=%d", childSeed, rng.Uint64()),
			fmt.Sprintf("%s=%d", childSteps, steps))
		child.Stderr = os.Stderr
		out := testkit.Value(child.StdoutPipe())(t)
		testkit.Must(t, child.Start())
		after := rng.IntN(steps * 4 / 3) // or it ends by itself
		lines := bufio.NewScanner(out)
		killed := false
		for n := 0; lines.Scan(); n++ {
			if n == after {
				killed = true
				testkit.Must(t, child.Process.Kill())
			}
		}
		if err := child.Wait(); err != nil && !killed {
			t.Fatal(err)
		}
	}
}

// damage damages a file of a log, most of the time not at all.
func damage(t *testing.T, dir string, rng *rand.Rand) {
	t.Helper()
	files := testkit.Value(filepath.Glob(filepath.Join(dir, "partitions", "*", "*")))(t)
	if len(files) == 0 {
		return // it was killed early
	}
	path := files[rng.IntN(len(files))]
	b := testkit.Value(os.ReadFile(path))(t)
	switch n := rng.IntN(9); {
	case n == 0 && len(b) > 0:
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
	case n == 1 && len(b) > 0:
		b = b[:rng.IntN(len(b))]
	case n == 2:
		testkit.Must(t, os.Remove(path))
		return
	case n == 3:
		testkit.Must(t, os.Remove(filepath.Join(dir, "topics.json")))
		return
	default:
		return
	}
	testkit.Must(t, os.WriteFile(path, b, 0o600))
}

var errKilled = errors.New("the process is killed")

// mortal is a process that is killed at one of its writes: at once, or when the write was made.
type mortal struct {
	left  int // writes until then
	after bool
}

func (m *mortal) write(f func() error) error {
	m.left--
	if m.left < 0 || m.left == 0 && !m.after {
		return errKilled
	}
	if err := f(); err != nil {
		return err
	}
	if m.left == 0 {
		return errKilled
	}
	return nil
}

type mortalRecords struct {
	store.Records
	*mortal
}

func (r mortalRecords) Commit(
	ctx context.Context, list []store.Record, keys ...store.Key,
) (wait func() error, err error) {
	err = r.write(func() (err error) {
		wait, err = r.Records.Commit(ctx, list, keys...)
		return err
	})
	if err != nil && wait != nil {
		return nil, errors.Join(err, wait())
	}
	return wait, err
}

type mortalStore struct {
	store.Store
	*mortal
}

func (s mortalStore) BatchWrite(ctx context.Context, list []store.Write) error {
	return s.write(func() error { return s.Store.BatchWrite(ctx, list) })
}

type mortalGroups struct {
	group.Store
	*mortal
}

func (g mortalGroups) Write(ctx context.Context, list []group.Row) error {
	return g.write(func() error { return g.Store.Write(ctx, list) })
}

// upgraded upgrades a log with kills, each with a loss of power, until a run comes to its end.
func upgraded(t *testing.T, disk *embeddedtest.Disk, dir string, groups group.Store, rng *rand.Rand) *opened {
	t.Helper()
	for kills := 0; ; kills++ {
		s := disk.Open(t, nil)
		x := open(t, s, dir, groups)
		m := &mortal{left: 1 + rng.IntN(12), after: rng.IntN(2) == 0}
		x.log = commitlog.NewLocal(mortalRecords{records.Of(s), m}, time.Now)
		x.cfg.Log, x.cfg.Store, x.cfg.Groups = x.log, mortalStore{s, m}, mortalGroups{groups, m}
		x.cfg.Topics, x.cfg.Behind = randomTopics, func([]upgrade.Event) error { return nil }
		if rng.IntN(2) == 0 {
			x.cfg.SmallSteps()
		}
		_, err := upgrade.Run(t.Context(), x.cfg)
		if err == nil {
			m.left = 1 << 30
			return x
		}
		if !errors.Is(err, errKilled) || kills > 1_000 {
			t.Fatal(kills, err)
		}
		next := disk.PowerLoss(rng)
		testkit.Must(t, s.Close())
		disk = next
	}
}

// writeRows writes the rows of some events; a few are of other events.
func writeRows(t *testing.T, disk *embeddedtest.Disk, rng *rand.Rand, marks map[kafka.Partition]logdir.Mark) {
	t.Helper()
	s := disk.Open(t, nil)
	for n := range chats {
		for version := range int64(versionsOfChat) {
			e := sample(chatOf(n), version+1)
			switch rng.IntN(10) {
			case 0:
				continue
			case 1:
				e.Payload = append(e.Payload, sample("chat_x", 1).Payload...)
			}
			row := store.Write{Op: store.OpPut, Key: table.EventKey(e.ChatID, e.Version), Item: e.Item()}
			testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{row}))
		}
	}
	if marks != nil {
		var lines []string
		for p, m := range marks {
			lines = append(lines, fmt.Sprintf("%s %d %d %d %d", p.Topic, p.ID, m.Start, m.End, m.Since))
		}
		testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: table.LogKey(),
			Item: store.NewItem(store.Attr{Name: table.AttrLogMarks, Value: store.List(lines)})}}))
	}
	testkit.Must(t, s.Close())
}

// Whatever a killed broker has left, and wherever the upgrade is killed: readers and groups see what the
// next start of the broker would have shown them.
func TestRandomLogs(t *testing.T) {
	base := testkit.Seed(t, 0)
	for round := range testkit.Rounds(t, "PARLEY_UPGRADES", 12) {
		seed := base + uint64(round)
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			dir := filepath.Join(t.TempDir(), "log")
			testkit.Must(t, os.Mkdir(dir, 0o700))
			fill(t, dir, rng)
			var marks map[kafka.Partition]logdir.Mark
			if rng.IntN(2) == 0 {
				marks = testkit.Value(logdir.Check(dir, oldTopics(), nil))(t).Marks
			}
			damage(t, dir, rng)
			again := t.TempDir()
			testkit.Must(t, os.CopyFS(again, os.DirFS(dir)))
			b := testkit.Value(openOld(again, marks))(t)
			want := testkit.Value(show(t.Context(), b))(t)
			b.Close()
			before := sums(t, dir)

			disk, groups := embeddedtest.NewDisk(nil), &rows{}
			writeRows(t, disk, rng, marks)
			x := upgraded(t, disk, dir, groups, rng)
			x.read(t).expect(t, want.content)
			x.expectOffsets(t, groups, want.Offsets)
			for path, sum := range sums(t, dir) {
				if before[path] != sum {
					t.Errorf("%s has changed", path)
				}
			}
			x.inspect(t)
		})
		if !ok {
			return
		}
	}
}
