package commitlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

const (
	crashPartitions = 2
	crashPublishers = 6
	crashAppends    = 30 // of each publisher
	crashPulls      = 3  // moments at which the power fails, and one at the end
)

func crashPartition(n int) commitlog.Partition {
	return commitlog.Partition{Topic: 1, Number: int32(n % crashPartitions)}
}

// promises are what a log has acknowledged, or shown.
type promises struct {
	mu    sync.Mutex
	acked map[string]int64 // payload → position
	shown [crashPartitions]int64
	start [crashPartitions]int64 // after trims
}

func (p *promises) ack(payload string, base int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked[payload] = base
}

func (p *promises) show(partition int, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown[partition] = max(p.shown[partition], end)
}

func (p *promises) trimmed(partition int, start int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start[partition] = max(p.start[partition], start)
}

func (p *promises) snapshot() *promises {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &promises{acked: map[string]int64{}, shown: p.shown, start: p.start}
	for k, v := range p.acked {
		c.acked[k] = v
	}
	return c
}

func payloadOf(publisher, n int) string { return fmt.Sprintf("publisher %d, number %d", publisher, n) }

// crashRequest is the request of a publisher with a number: a message for its partition, and for the
// other one a message if the number is even and only the number if it is odd.
func crashRequest(publisher, n int, text string) []commitlog.Append {
	list := []*commitlog.Message{{Key: "k", Payload: []byte(payloadOf(publisher, n) + text)}}
	if n%2 == 0 {
		list = append(list, &commitlog.Message{Payload: []byte(otherHalf(publisher, n) + text)})
	}
	a := commitlog.Append{Partition: crashPartition(publisher), Messages: list[:1], Request: commitlog.HashOf(list),
		Producer: commitlog.Producer{ID: fmt.Sprint("p", publisher), Number: int64(n)}}
	other := a
	other.Partition, other.Messages = crashPartition(publisher+1), list[1:]
	return []commitlog.Append{a, other}
}

func otherHalf(publisher, n int) string { return payloadOf(publisher, n) + ", other half" }

// remains is a disk after a loss of power and what was promised before.
type remains struct {
	disk     *embeddedtest.Disk
	promised *promises
}

// crashRound publishes, reads and trims on one log from several goroutines, pulls the plug
// at random moments and returns what the remains lack.
func crashRound(t *testing.T, seed uint64, bug func(store.Records) store.Records) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	disk := embeddedtest.NewDisk(runtime.Gosched)
	log := commitlog.NewLocal(bug(records.Of(disk.Open(t, nil))), time.Now)
	p := &promises{acked: map[string]int64{}}
	pulls := map[int]bool{}
	for len(pulls) < crashPulls {
		pulls[rng.IntN(crashPublishers*crashAppends)] = true
	}
	var left []remains
	var steps int
	var mu sync.Mutex // of left and steps
	step := func() {
		mu.Lock()
		defer mu.Unlock()
		if steps++; pulls[steps] {
			promised := p.snapshot() // must be on the disk now
			left = append(left, remains{disk.PowerLoss(rng), promised})
		}
	}
	var wg sync.WaitGroup
	for publisher := range crashPublishers {
		own := rand.New(rand.NewPCG(seed, uint64(publisher)+10))
		wg.Go(func() {
			for n := range crashAppends {
				if err := crashStep(t.Context(), log, p, own, publisher, n); err != nil {
					t.Error(err)
				}
				step()
			}
		})
	}
	wg.Wait()
	left = append(left, remains{disk.PowerLoss(rng), p.snapshot()})
	for i, r := range left {
		if err := checkRemains(t, r); err != nil {
			return fmt.Errorf("crash %d: %w", i, err)
		}
	}
	return nil
}

func crashStep(ctx context.Context, log commitlog.Log, p *promises, rng *rand.Rand, publisher, n int) error {
	got, err := log.Append(ctx, crashRequest(publisher, n, ""))
	if err != nil {
		return err
	}
	p.ack(payloadOf(publisher, n), got[0].Base)
	other := rng.IntN(crashPartitions)
	switch rng.IntN(8) {
	case 0:
		start, err := log.Trim(ctx, crashPartition(other), got[0].Base/2)
		if err != nil {
			return err
		}
		p.trimmed(other, start)
	default:
		_, end, err := log.Bounds(ctx, crashPartition(other))
		if err != nil {
			return err
		}
		p.show(other, end)
	}
	return nil
}

// checkRemains opens what is left: nothing that was acknowledged or shown is missing, no
// position is, and each number of a producer that is published again is stored once.
func checkRemains(t *testing.T, r remains) error {
	t.Helper()
	ctx := t.Context()
	log := commitlog.NewLocal(records.Of(r.disk.Open(t, nil)), time.Now)
	there, err := contents(ctx, log)
	if err != nil {
		return err
	}
	for n := range crashPartitions {
		start, end, err := log.Bounds(ctx, crashPartition(n))
		if err != nil || end < r.promised.shown[n] || start < r.promised.start[n] {
			return fmt.Errorf("partition %d: start %d and end %d (%w), %d and %d were promised", n, start, end, err,
				r.promised.start[n], r.promised.shown[n])
		}
	}
	for payload, base := range r.promised.acked {
		var publisher, n int
		if _, err := fmt.Sscanf(payload, "publisher %d, number %d", &publisher, &n); err != nil {
			return err
		}
		start, _, err := log.Bounds(ctx, crashPartition(publisher))
		if err != nil {
			return err
		}
		if at, ok := there[payload]; !ok && base >= start || ok && at != base {
			return fmt.Errorf("%s was acknowledged at %d, is at %d (%v)", payload, base, at, ok)
		}
	}
	for publisher := range crashPublishers { // all again
		for n := range crashAppends {
			if err := checkRequest(ctx, log, there, r.promised, publisher, n); err != nil {
				return err
			}
			got, err := log.Append(ctx, crashRequest(publisher, n, ""))
			if err != nil {
				return err
			}
			payload := payloadOf(publisher, n)
			if base, acked := r.promised.acked[payload]; acked && (!got[0].Replayed || got[0].Base != base) {
				return fmt.Errorf("%s again: %+v, it was acknowledged at %d", payload, got[0], base)
			}
		}
	}
	_, err = contents(ctx, log)
	return err
}

// checkRequest finds a request of which only a half is stored, and a number that is stored and takes
// another request, whichever partition that goes to.
func checkRequest(
	ctx context.Context, log commitlog.Log, there map[string]int64, promised *promises, publisher, n int,
) error {
	start, _, err := log.Bounds(ctx, crashPartition(publisher))
	if err != nil {
		return err
	}
	otherStart, _, err := log.Bounds(ctx, crashPartition(publisher+1))
	if err != nil {
		return err
	}
	_, first := there[payloadOf(publisher, n)]
	_, second := there[otherHalf(publisher, n)]
	if n%2 == 0 && first != second && start+otherStart == 0 {
		return fmt.Errorf("of number %d of publisher %d the halves are stored: %v, %v", n, publisher, first, second)
	}
	if _, acked := promised.acked[payloadOf(publisher, n)]; !acked && !first && !second {
		return nil
	}
	another := crashRequest(publisher, n, " changed")
	moved := another[0]
	moved.Partition = another[1].Partition
	for _, list := range [][]commitlog.Append{another, {moved}} {
		if got, err := log.Append(ctx, list); !errors.Is(err, commitlog.ErrProducerReuse) {
			return fmt.Errorf("number %d of publisher %d with another request is %+v, %w", n, publisher, got, err)
		}
	}
	return nil
}

// contents reads all partitions: which payload is where. One that is there twice is an
// error, as is a position that is missing.
func contents(ctx context.Context, log commitlog.Log) (map[string]int64, error) {
	there := map[string]int64{}
	for n := range crashPartitions {
		next, end, err := log.Bounds(ctx, crashPartition(n))
		if err != nil {
			return nil, err
		}
		for next < end {
			batches, err := log.Read(ctx, crashPartition(n), next, 1000)
			if err != nil {
				return nil, err
			}
			for _, b := range batches {
				if b.Base != next {
					return nil, fmt.Errorf("partition %d: position %d is missing", n, next)
				}
				next = b.End()
				for i := range b.Count() {
					m, err := b.Message(i)
					if err != nil {
						return nil, err
					}
					payload := string(m.GetPayload())
					if at, twice := there[payload]; twice {
						return nil, fmt.Errorf("%s is at %d and at %d", payload, at, b.Base)
					}
					there[payload] = b.Base + int64(i)
				}
			}
		}
	}
	return there, nil
}

func TestPowerLoss(t *testing.T) {
	for seed := range uint64(40) {
		if err := crashRound(t, seed, func(r store.Records) store.Records { return r }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// hasty is an engine that says that something is durable before it is.
type hasty struct{ store.Records }

func (h hasty) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	wait, err := h.Records.Commit(ctx, list, rows...)
	if err != nil {
		return nil, err
	}
	return func() error {
		go func() { _ = wait() }()
		return nil
	}, nil
}

// forgetful is an engine that loses what was written last of each commit.
type forgetful struct{ store.Records }

func (f forgetful) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	return f.Records.Commit(ctx, list[len(list)-1:], rows...)
}

// careless is an engine that loses numbers that a partition has without messages.
type careless struct{ store.Records }

func (c careless) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	return c.Records.Commit(ctx, slices.DeleteFunc(list, func(r store.Record) bool {
		p, err := producers.Parse(r.Value)
		return err == nil && p.Count == 0
	}), rows...)
}

// The same rounds must notice engines and logs that promise too early.
func TestPowerLossNoticesMistakes(t *testing.T) {
	for name, bug := range map[string]func(store.Records) store.Records{
		"acknowledged before it is durable": func(r store.Records) store.Records { return hasty{r} },
		"producers are not remembered":      func(r store.Records) store.Records { return forgetful{r} },
		"only numbers are not remembered":   func(r store.Records) store.Records { return careless{r} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if err := crashRound(t, seed, bug); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}

// Nothing is shown, counted or found before it is durable, and a repetition is not
// acknowledged before what it repeats.
func TestNothingIsShownBeforeItIsDurable(t *testing.T) {
	var disks sync.RWMutex // while it is locked, no sync ends
	disk := embeddedtest.NewDisk(func() {
		disks.RLock()
		defer disks.RUnlock()
	})
	log := commitlog.NewLocal(records.Of(disk.Open(t, nil)), commitlogtest.NewClock().Now)
	at := commitlog.Partition{Topic: 1}
	one := []commitlog.Append{{Partition: at, Messages: []*commitlog.Message{{Key: "a"}},
		Producer: commitlog.Producer{ID: "p", Number: 1}}}
	disks.Lock()
	stopped := true
	defer func() {
		if stopped {
			disks.Unlock()
		}
	}()
	first, err := log.Begin(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	again, err := log.Begin(t.Context(), one)
	if err != nil || !again.Appended[0].Replayed {
		t.Fatalf("%+v, %v", again, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := again.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a repetition of what is not durable: %v", err)
	}
	if _, end, err := log.Bounds(t.Context(), at); err != nil || end != 0 {
		t.Errorf("the end is %d (%v) before anything is durable", end, err)
	}
	if got, err := log.Read(t.Context(), at, 0, 1000); err != nil || len(got) != 0 {
		t.Errorf("read %d batches (%v) before they are durable", len(got), err)
	}
	if got, err := log.PositionAt(t.Context(), at, time.Unix(0, 0)); err != nil || got != 0 {
		t.Errorf("position %d, %v", got, err)
	}
	if t.Failed() {
		return // a trim would wait for the disk
	}
	short, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if start, err := log.Trim(short, at, 1); start != 0 {
		t.Errorf("trimmed up to %d (%v) what is not durable", start, err)
	}
	disks.Unlock()
	stopped = false
	if err := first.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := log.Read(t.Context(), at, 0, 1000); err != nil || len(got) != 1 {
		t.Errorf("read %d batches (%v) when they are durable", len(got), err)
	}
}
