package lifecycletest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
)

// mistake names the mistake that the test runs in a process of its own.
const mistake = "PARLEY_TEST_MISTAKE"

// runs are services by name: one that keeps the contract, and one for each mistake.
var runs = map[string]func(ctx context.Context, ready func()) error{
	"none": func(ctx context.Context, ready func()) error { ready(); <-ctx.Done(); return nil },
	"returned context canceled": func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return ctx.Err()
	},
	"did not stop within": func(_ context.Context, ready func()) error { ready(); select {} },
	"called ready 2 times": func(ctx context.Context, ready func()) error {
		ready()
		ready()
		<-ctx.Done()
		return nil
	},
	"was not ready within": func(ctx context.Context, _ func()) error { <-ctx.Done(); return nil },
	"ended by itself":      func(_ context.Context, ready func()) error { ready(); return nil },
	"ended before it was ready: broken": func(ctx context.Context, _ func()) error {
		if ctx.Err() != nil {
			return nil
		}
		return errors.New("broken")
	},
	"found unexpected goroutines": func(ctx context.Context, ready func()) error {
		go func() { time.Sleep(time.Minute) }()
		ready()
		<-ctx.Done()
		return nil
	},
}

// Stress lets a service pass that keeps the contract, and finds each mistake.
func TestStress(t *testing.T) {
	if run := runs[os.Getenv(mistake)]; run != nil {
		Stress(t, func(*testing.T) lifecycle.Service {
			s := lifecycle.Service{Name: "tested", Run: run}
			if strings.HasSuffix(os.Getenv(mistake), " within") { // the others end, and a busy machine takes its time
				s.Stop = 100 * time.Millisecond
			}
			return s
		})
		return
	}
	for name := range runs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStress$")
			cmd.Env = append(os.Environ(), mistake+"="+name)
			out, err := cmd.CombinedOutput()
			if name == "none" {
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(string(out), name) {
				t.Errorf("%v\n%.2000s", err, out)
			}
		})
	}
}
