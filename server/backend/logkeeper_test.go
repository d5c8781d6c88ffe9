package backend

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
)

// tested is a log whose trims leave what the test says.
type tested struct {
	*LogKeeper
	left   map[kafka.Kind]int64
	fails  error
	trims  int
	lines  strings.Builder
	pauses atomic.Int64 // what the test did before a pause happens before the trims in it
}

// pause lets the time pass after which a log that has no room is trimmed again.
func (x *tested) pause() {
	x.pauses.Add(1)
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// keep runs a keeper in a bubble of package synctest until the test ends.
func keep(t *testing.T) *tested {
	t.Helper()
	x := &tested{left: map[kafka.Kind]int64{kafka.Chats: 900, kafka.DeadLetterKind: 200, kafka.Searches: 400,
		kafka.SearchDeadLetterKind: 100}}
	x.LogKeeper = newLogKeeper(func(context.Context) (map[kafka.Kind]int64, error) {
		x.pauses.Load()
		x.trims++
		return x.left, x.fails
	}, func() int64 { return 7 }, slog.New(slog.NewTextHandler(&x.lines, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var ready atomic.Bool
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx, func() { ready.Store(true) }) }()
	t.Cleanup(func() {
		cancel()
		testkit.Must(t, <-done)
	})
	synctest.Wait()
	testkit.Equal(t, "ready", ready.Load(), true)
	return x
}

func (x *tested) refuses(t *testing.T, kind kafka.Kind, want error) {
	t.Helper()
	if err := x.Reserve(kind, 10); !errors.Is(err, want) {
		t.Errorf("%v, expected %v", err, want)
	}
}

// Room that is used up between two trims has the log trimmed at once. While that leaves none,
// only that kind of records is refused, and trims follow at intervals however often relays ask.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := keep(t)
		testkit.Equal(t, "trims at the start", x.trims, 1)
		testkit.Must(t, x.Reserve(kafka.Searches, 200))
		synctest.Wait()
		testkit.Equal(t, "trims while half is left", x.trims, 1)
		testkit.Must(t, x.Reserve(kafka.Searches, 1))
		synctest.Wait()
		testkit.Equal(t, "trims when less is left", x.trims, 2)

		testkit.Must(t, x.Reserve(kafka.Searches, 500)) // one may exceed the room
		synctest.Wait()
		testkit.Equal(t, "trims", x.trims, 3)
		testkit.Equal(t, "full after a trim that made room", x.Full(kafka.Searches), false)

		x.left[kafka.Searches] = -5
		testkit.Must(t, x.Reserve(kafka.Searches, 500))
		synctest.Wait()
		testkit.Equal(t, "full", x.Full(kafka.Searches), true)
		testkit.Equal(t, "chats full", x.Full(kafka.Chats), false)
		for range 100 {
			x.refuses(t, kafka.Searches, ErrLogFull)
			synctest.Wait()
		}
		testkit.Equal(t, "trims", x.trims, 4)
		testkit.Must(t, x.Reserve(kafka.Chats, 900)) // others have the log trimmed at once meanwhile
		synctest.Wait()
		testkit.Equal(t, "trims for chats", x.trims, 5)
		testkit.Must(t, x.Reserve(kafka.Chats, 1))

		x.left[kafka.Searches] = 40
		x.pause()
		testkit.Equal(t, "full at the end", x.Full(kafka.Searches), false)
		testkit.Must(t, x.Reserve(kafka.Searches, 10))
		for _, line := range []string{"search events exceed their share", "has room again"} {
			testkit.Equal(t, line, strings.Count(x.lines.String(), line), 1)
		}
	})
}

// Of a log that cannot be trimmed, what was measured counts: kinds that have room are published,
// others are not, and the log says why.
func TestReserveAfterFailedTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := keep(t)
		x.fails = errors.New("the disk is broken")
		x.left[kafka.Searches] = -5
		testkit.Must(t, x.Reserve(kafka.Chats, 900)) // the trim leaves 900 again
		synctest.Wait()
		testkit.Must(t, x.Reserve(kafka.Chats, 400))
		x.refuses(t, kafka.Searches, ErrLogFull)
		x.left[kafka.Chats] = 0
		x.pause()
		x.refuses(t, kafka.Chats, ErrLogFull)
		testkit.Equal(t, "failed", x.failed.Load(), true)
		for line, n := range map[string]int{"the disk is broken": x.trims - 1,
			"which cannot be trimmed; new ones are refused": 1, "event log; new ones are refused": 0} {
			testkit.Equal(t, line, strings.Count(x.lines.String(), line), n)
		}
		x.fails = nil // from now on another reason is the right one
		x.pause()
		testkit.Equal(t, "reasons", strings.Count(x.lines.String(), "event log; new ones are refused"), 1)
		testkit.Equal(t, "failed", x.failed.Load(), false)
	})
}

// While the log cannot be measured, kinds that the last measurement left no room stay refused.
// The others are not bounded, and do not have the log trimmed all the time.
func TestReserveWithoutMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := keep(t)
		x.left[kafka.Searches] = -5
		testkit.Must(t, x.Reserve(kafka.Chats, 900))
		synctest.Wait()
		measured := x.left
		x.left, x.fails = nil, errors.New("the disk is broken")
		testkit.Must(t, x.Reserve(kafka.Chats, 900))
		synctest.Wait()
		trims := x.trims
		for range 100 {
			testkit.Must(t, x.Reserve(kafka.Chats, 900))
			x.refuses(t, kafka.Searches, ErrLogFull)
			synctest.Wait()
		}
		testkit.Equal(t, "trims", x.trims, trims)
		x.left, x.fails = measured, nil
		x.pause()
		testkit.Must(t, x.Reserve(kafka.Chats, 900)) // one may exceed the room
		x.refuses(t, kafka.Chats, ErrLogFull)
	})
}

// A failure of the first trim stops no kind of records.
func TestReserveAfterAFailedStart(t *testing.T) {
	t.Parallel()
	k := newLogKeeper(func(context.Context) (map[kafka.Kind]int64, error) { return nil, errors.New("the disk is broken") },
		func() int64 { return 7 }, slog.New(slog.DiscardHandler))
	k.trimOnce(t.Context())
	for _, kind := range kafka.Kinds() {
		testkit.Must(t, k.Reserve(kind, 1))
	}
}
