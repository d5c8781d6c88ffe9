package testkit_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func TestAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var rings atomic.Int64
		for range 3 {
			go func() {
				time.Sleep(time.Hour)
				rings.Add(1)
			}()
		}
		testkit.Advance(time.Hour - time.Second)
		if n := rings.Load(); n != 0 {
			t.Errorf("%d of 3 alarms rang a second early, want none", n)
		}
		testkit.Advance(time.Second)
		if n := rings.Load(); n != 3 || time.Since(began) != time.Hour {
			t.Errorf("%d of 3 alarms rang after %v, want all after an hour", n, time.Since(began))
		}
	})
}

func TestAdvanceOutsideABubble(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it waited in real time, want a panic")
		}
	}()
	testkit.Advance(0)
}
