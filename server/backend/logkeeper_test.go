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

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/testkit"
)

// tested is a log whose trims leave what the test says.
type tested struct {
	*LogKeeper
	left    map[kafka.Kind]int64
	fails   error
	trims   int
	crowded bool
	lines   strings.Builder
}

// keep runs a keeper in a bubble of package synctest until the test ends.
func keep(t *testing.T) *tested {
	t.Helper()
	x := &tested{left: map[kafka.Kind]int64{kafka.Chats: 900, kafka.Letters: 200, kafka.Searches: 400,
		kafka.SearchLetters: 100}}
	x.LogKeeper = newLogKeeper(func() (map[kafka.Kind]int64, error) {
		x.trims++
		if x.fails != nil {
			return nil, x.fails
		}
		return x.left, nil
	}, func() int64 { return 7 }, func() bool { return x.crowded }, slog.New(slog.NewTextHandler(&x.lines, nil)))
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
		testkit.Must(t, x.Reserve(kafka.Chats, 1))

		x.left[kafka.Searches] = 40
		time.Sleep(5 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "full at the end", x.Full(kafka.Searches), false)
		testkit.Must(t, x.Reserve(kafka.Searches, 10))
		for _, line := range []string{"search events exceed their share", "has room again"} {
			testkit.Equal(t, line, strings.Count(x.lines.String(), line), 1)
		}
	})
}

// A log that cannot be trimmed, and a disk that is almost full, are no reason to write more.
func TestReserveWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := keep(t)
		x.fails = errors.New("the disk is broken")
		testkit.Must(t, x.Reserve(kafka.Chats, 900))
		x.refuses(t, kafka.Chats, ErrLogFull)
		synctest.Wait()
		testkit.Equal(t, "full", x.Full(kafka.Chats), true)
		x.refuses(t, kafka.Chats, ErrLogFull)
		for _, line := range []string{"the disk is broken", "exceeds its cap"} {
			testkit.Equal(t, line, strings.Contains(x.lines.String(), line), true)
		}
		x.crowded = true
		x.refuses(t, kafka.Searches, errDiskFull)
	})
}
