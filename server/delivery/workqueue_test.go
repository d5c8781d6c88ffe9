package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestWorkqueueOrder(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var q workQueue[[2]int]
		n := 1 + rnd.IntN(30)
		for i := range n {
			at := rnd.IntN(10)
			q.Push(start.Add(time.Duration(at)*time.Second), [2]int{at, i})
		}
		var got [][2]int
		for now := range 10 {
			at := start.Add(time.Duration(now) * time.Second)
			for {
				w, wait, ok := q.Pop(at)
				if !ok {
					if left := n - len(got); (wait > 0) != (left > 0) {
						t.Fatalf("wait %v with %d left", wait, left)
					}
					break
				}
				if w[0] != now {
					t.Fatalf("%v came at %d", w, now)
				}
				got = append(got, w)
			}
		}
		if len(got) != n || !slices.IsSortedFunc(got, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
			t.Fatalf("seed %d: %v", seed, got)
		}
	}
}

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	work, done, failed := make(chan int, 100), make(chan int, 100), make(chan error, 100)
	for i := range 100 {
		work <- i
	}
	wake := make(chan struct{}, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runWork(ctx, 3, workMachine[int]{
			Next: func() (int, time.Duration, bool) {
				select {
				case i := <-work:
					return i, 0, true
				default:
					return 0, 0, false
				}
			},
			Do: func(_ context.Context, i int) error {
				done <- i
				if i == 50 {
					return errors.New("fifty")
				}
				return nil
			},
			Failed: func(err error) { failed <- err },
			Wake:   wake,
			Signal: func() {
				select {
				case wake <- struct{}{}:
				default:
				}
			},
			Tick: func() {},
		})
	}()
	seen := map[int]bool{}
	for range 100 {
		seen[<-done] = true
	}
	if err := <-failed; len(seen) != 100 || fmt.Sprint(err) != "fifty" {
		t.Errorf("%d pieces done, %v", len(seen), err)
	}
	cancel()
	<-finished
}
