package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/testkit"
	"github.com/parley-chat/parley/workers/consume"
)

// image is what is on the disk of a directory: the files as of their last sync.
type image map[string][]byte

func imageOf(t *testing.T, dir string) image {
	t.Helper()
	im := image{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		im[rel], err = os.ReadFile(path)
		return err
	})
	testkit.Must(t, err)
	return im
}

func (im image) write(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, b := range im {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Must(t, os.WriteFile(path, b, 0o600))
	}
	return dir
}

// lose returns what a power loss leaves of files: everything up to the last sync, and of what
// was written after it some, none, or as many zeros.
func (im image) lose(now image, rng *rand.Rand) image {
	remaining := image{}
	for name, b := range now {
		synced, exists := im[name]
		switch {
		case !exists && rng.IntN(2) == 0:
		case strings.HasSuffix(name, ".json") || !bytes.HasPrefix(b, synced): // synced and renamed, which is done or not
			remaining[name] = b
			if exists && rng.IntN(2) == 0 {
				remaining[name] = synced
			}
		default:
			keep := len(synced)
			if rng.IntN(2) == 0 {
				keep += rng.IntN(len(b) - len(synced) + 1)
			}
			remaining[name] = append([]byte(nil), b[:keep]...)
			if rng.IntN(4) == 0 {
				remaining[name] = append(remaining[name], make([]byte, len(b)-keep)...)
			}
		}
	}
	return remaining
}

var errKilled = errors.New("the process is dead")

// A step is a place at which a process can end, named after what was done last.
var steps = []string{
	"nothing", "commit", "produce", "part of a transaction", "transaction", "before the sync", "sync",
	"half of the deletion", "deletion",
}

// usualEnds is the number of ends of a plain go test.
var usualEnds = 6 * len(steps)

// life is one process with a broker, a relay and a consumer. It may end at a step.
type life struct {
	r      *fixture
	dir    string
	broker *kafka.Broker
	disk   image
	client *kafka.Client
	relay  *Relay
	log    map[string]bool // events that this process has published
	dieAt  string
	dead   atomic.Bool // deletions run side by side
}

// die reports whether the process is dead at a step.
func (l *life) die(step string) bool {
	if step == l.dieAt {
		l.dead.Store(true)
	}
	return l.dead.Load()
}

// halves deletes rows in two halves, so that a process can end between them.
type halves struct {
	store.Store
	l *life
}

func (h halves) BatchWrite(ctx context.Context, writes []store.Write) error {
	if h.l.die("sync") {
		return errKilled
	}
	if len(writes) > 1 {
		if err := h.Store.BatchWrite(ctx, writes[:len(writes)/2]); err != nil {
			return err
		}
	}
	if h.l.die("half of the deletion") {
		return errKilled
	}
	if err := h.Store.BatchWrite(ctx, writes[len(writes)/2:]); err != nil {
		return err
	}
	if h.l.die("deletion") {
		return errKilled
	}
	return nil
}

func (r *fixture) live(dir string, disk image, dieAt string) *life {
	r.t.Helper()
	l := &life{r: r, dir: dir, disk: disk, dieAt: dieAt, log: map[string]bool{}}
	var err error
	l.broker, err = kafka.OpenBroker(kafka.BrokerConfig{Dir: dir, Listen: "127.0.0.1:0"})
	r.must(err)
	l.client, err = kafka.NewTransactional(l.broker.Addr(), "parley-relay-0")
	r.must(err)
	l.relay, err = New(Config{
		Store: halves{r.store, l}, Serde: r.serde, Clock: func() time.Time { return r.now }, Logger: discard, MaxBatch: 5,
		Publish: Flatten(func(ctx context.Context, records []*kafka.Record) error {
			if l.die("commit") {
				return errKilled
			}
			if l.dieAt == "produce" || l.dieAt == "part of a transaction" {
				l.dead.Store(true)
				if l.dieAt == "part of a transaction" {
					records = records[:(len(records)+1)/2]
				}
				return errors.Join(l.client.BeginTransaction(), l.client.ProduceSync(ctx, records...).FirstErr(), errKilled)
			}
			if err := kafka.Transact(ctx, l.client, records); err != nil {
				return err
			}
			for _, rec := range records {
				e, err := r.serde.Decode(context.Background(), rec.Key, rec.Value)
				r.must(err)
				l.log[eventName(e)] = true
			}
			if l.die("transaction") {
				return errKilled
			}
			return nil
		}),
		Flush: func(ctx context.Context) error {
			if l.die("before the sync") {
				return errKilled
			}
			before := imageOf(r.t, dir)
			if err := l.broker.Flush(ctx); err != nil {
				return err
			}
			l.disk = before
			return nil
		},
	})
	r.must(err)
	return l
}

// end ends the process without warning and returns the directory of the next one. Its files
// are as the system has them or, after a power loss, as the disk has them.
func (l *life) end(powerLoss bool, rng *rand.Rand) (dir string, disk image) {
	now := imageOf(l.r.t, l.dir)
	if powerLoss {
		now = l.disk.lose(now, rng)
		l.disk = now // that much survived
	}
	l.client.Close() // what it writes now is not in the copy
	l.broker.Close()
	l.r.must(os.RemoveAll(l.dir))
	return now.write(l.r.t), l.disk
}

const lossGroup = "loss"

// consumer is a group that records what it has handled, across all processes.
type consumer struct {
	r    *fixture
	mu   sync.Mutex
	seen map[string]bool
}

// consume runs the group until it has handled enough.
func (c *consumer) consume(addr string, enough func(seen int) bool) {
	c.r.t.Helper()
	ctx, cancel := context.WithTimeout(c.r.ctx, time.Minute)
	defer cancel()
	e, err := consume.New(consume.Config{
		Addr: addr, Group: lossGroup, Consumer: "c", Store: c.r.store, Clock: time.Now, Logger: discard,
		Topics: []string{kafka.MessagesPersisted, kafka.MembershipsChanged, kafka.ChatsCreated},
		Handle: func(_ context.Context, rec *kafka.Record) error {
			e, err := c.r.serde.Decode(context.Background(), rec.Key, rec.Value)
			if err != nil {
				return err
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.seen[eventName(e)] = true
			if enough(len(c.seen)) {
				cancel()
			}
			return nil
		},
		WriteDeadLetter: func(_ context.Context, d consume.DeadLetter) error { return errors.New(d.Reason) },
	})
	c.r.must(err)
	if err := e.Run(ctx); !errors.Is(err, context.Canceled) {
		c.r.t.Fatalf("the consumer ended with %v after %d events, expected context.Canceled after enough", err, len(c.seen))
	}
}

// some consumes at least one and at most all of the unseen events that a process has
// published.
func (c *consumer) some(l *life, rng *rand.Rand) {
	c.r.t.Helper()
	unseen := 0
	for name := range l.log {
		if !c.seen[name] {
			unseen++
		}
	}
	if unseen > 0 {
		stop := len(c.seen) + 1 + rng.IntN(unseen)
		c.consume(l.broker.Addr(), func(n int) bool { return n >= stop })
	}
}

func eventName(e event.Event) string {
	md := e.GetMetadata()
	return fmt.Sprint(md.GetGeneration(), "/", e.GetChatId(), "/", md.GetVersion())
}

// Processes end at every step between commit, produce, sync and delete, killed or by a loss
// of power that loses what was not synced. Every committed event is in the log, first
// occurrences in order, and reaches a consumer whose commits may have survived the records
// that they cover (K-072, K-074).
// PARLEY_KILLS sets the number of ends, or the time for them.
func TestEndsAtEveryStep(t *testing.T) {
	// What a disk loses is modelled, so the files need no disk.
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm")
	}
	rng := rand.New(rand.NewPCG(11, testkit.Seed(t, uint64(usualEnds))))
	r := newFixture(t)
	ids := []string{r.group(), r.group(), r.group(), r.group()}
	c := &consumer{r: r, seen: map[string]bool{}}
	dir, disk := t.TempDir(), image{}
	ends, losses := 0, 0
	for n := range testkit.Rounds(t, "PARLEY_KILLS", usualEnds) {
		ends++
		step, powerLoss := steps[n%len(steps)], rng.IntN(2) == 0
		l := r.live(dir, disk, step)
		for range 1 + rng.IntN(20) {
			r.send(ids[rng.IntN(len(ids))])
			if rng.IntN(4) > 0 { // otherwise the nudge is lost
				l.relay.Nudge(r.commits[len(r.commits)-1])
			}
		}
		// A healthy relay works before the step, and a consumer reads some of its records.
		l.dieAt = ""
		for range rng.IntN(3) {
			r.must(l.relay.Cycle(r.ctx))
			r.now = r.now.Add(time.Duration(rng.IntN(900)) * time.Millisecond)
		}
		if rng.IntN(2) == 0 {
			c.some(l, rng)
		}
		l.dieAt = step
		for range 4 {
			r.send(ids[rng.IntN(len(ids))])
			l.relay.Nudge(r.commits[len(r.commits)-1])
			if l.die("nothing") {
				break
			}
			if err := l.relay.Cycle(r.ctx); err != nil && !errors.Is(err, errKilled) {
				t.Fatalf("end %d, %s: %v", n, step, err)
			}
			r.now = r.now.Add(time.Second)
			if l.dead.Load() {
				break
			}
		}
		if !l.dead.Load() {
			t.Fatalf("end %d did not reach the step %q", n, step)
		}
		if rng.IntN(2) == 0 { // it may read records that are not synced yet
			c.some(l, rng)
		}
		if powerLoss {
			losses++
		}
		dir, disk = l.end(powerLoss, rng)
	}
	l := r.live(dir, disk, "")
	defer l.broker.Close()
	defer l.client.Close()
	r.rest(l.relay)
	r.checkOutbox()
	r.readLog(&kafkatest.Broker{Addr: l.broker.Addr()}, kafkatest.Beginning())
	all := r.events()
	if len(c.seen) < all {
		c.consume(l.broker.Addr(), func(n int) bool { return n >= all })
	}
	t.Logf("%d ends, %d of them by loss of power, %d events", ends, losses, all)
}

// events is the number of committed events.
func (r *fixture) events() (n int) {
	r.t.Helper()
	heads := map[string]int64{}
	for _, c := range r.commits {
		heads[c.ChatID] = max(heads[c.ChatID], c.Head.Version)
	}
	for _, v := range heads {
		n += int(v)
	}
	return n
}
