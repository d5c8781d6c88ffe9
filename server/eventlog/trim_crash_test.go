package eventlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// lossRound has dead letters published and trimmed, without a reader, while the power fails, several
// times on one disk, and returns what is wrong with what is left: each offset before the start must
// be in the ledger, once.
func lossRound(t *testing.T, seed uint64) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 9))
	deadLetters := kafka.Partition{Topic: deadLetterTopic}
	x := &fixture{disk: embeddedtest.NewDisk(runtime.Gosched)}
	set := func(c *Config) {
		c.Log = commitlog.NewLocal(records.Of(x.store), c.Clock)
		c.MaxBytes = 80_000 // of which dead letters have 10,000
	}
	x.open(t, set)
	for loss := range crashLosses {
		var mu sync.Mutex // of the loss
		var left *embeddedtest.Disk
		until := rng.IntN(60)
		step := func() (failed bool) {
			mu.Lock()
			defer mu.Unlock()
			if until--; until < 0 && left == nil {
				left = x.disk.PowerLoss(rng)
			}
			return left != nil
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for !step() {
				p := Publication{Records: []*kafka.Record{plain(deadLetterTopic, 0, string(make([]byte, 1000)))}}
				if err := x.Publish(t.Context(), []Publication{p}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for !step() {
				if _, err := x.Trim(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		x = &fixture{disk: left}
		x.open(t, set)
		if err := x.checkLedger(t.Context(), deadLetters); err != nil {
			return fmt.Errorf("loss %d: %w", loss, err)
		}
	}
	return nil
}

// checkLedger compares the ledger with the start of a partition of which nothing was read.
func (x *fixture) checkLedger(ctx context.Context, p kafka.Partition) error {
	start, _, err := x.Bounds(ctx, p)
	if err != nil {
		return err
	}
	list, err := x.GivenUp(ctx)
	if err != nil {
		return err
	}
	if start == 0 && len(list) == 0 {
		return nil
	}
	if len(list) != 1 || list[0].From != 0 || list[0].To < start || list[0].Records != list[0].To {
		return fmt.Errorf("the partition begins with %d, the ledger says %+v", start, list)
	}
	return nil
}

// No loss of a reader is missing in the ledger, and none is in it twice, whenever the power fails.
func TestLedgerAndPowerLoss(t *testing.T) {
	base := testkit.Seed(t, 0)
	for n := range testkit.Rounds(t, "PARLEY_PUBLISH_LOSSES", 20) {
		seed := base + uint64(n)
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { testkit.Must(t, lossRound(t, seed)) }) {
			return
		}
	}
}
