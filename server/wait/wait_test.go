package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/wait"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := wait.For(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("a minute: %v after %v", err, time.Since(began))
		}
		for _, d := range []time.Duration{0, -time.Second} {
			if err := wait.For(t.Context(), d); err != nil {
				t.Errorf("%v: %v", d, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := wait.For(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("a context that ends after a second: %v after %v", err, time.Since(began))
		}
		for range 100 {
			if err := wait.For(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a context that has ended: %v", err)
			}
		}
	})
}
