package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type trace struct {
	mu    sync.Mutex
	steps []string
}

func (tr *trace) add(s string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.steps = append(tr.steps, s)
}

func (tr *trace) service(name string) Service {
	return Service{Name: name, Run: func(ctx context.Context, ready func()) error {
		tr.add("start " + name)
		ready()
		<-ctx.Done()
		tr.add("stop " + name)
		return ctx.Err()
	}}
}

func TestOrder(t *testing.T) {
	var tr trace
	ctx, cancel := context.WithCancel(t.Context())
	err := Run(ctx, []Service{tr.service("a"), tr.service("b")}, func() { tr.add("started"); cancel() })
	want := []string{"start a", "start b", "started", "stop b", "stop a"}
	if err != nil || !slices.Equal(tr.steps, want) {
		t.Fatalf("%v, %v", tr.steps, err)
	}
}

func TestOneFailureStopsAll(t *testing.T) {
	for name, run := range map[string]func(context.Context, func()) error{
		"error":  func(_ context.Context, ready func()) error { ready(); return errors.New("broken") },
		"early":  func(context.Context, func()) error { return errors.New("broken") },
		"panic":  func(context.Context, func()) error { panic("broken") },
		"return": func(_ context.Context, ready func()) error { ready(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var tr trace
			err := Run(t.Context(), []Service{tr.service("a"), {Name: "b", Run: run}}, func() {})
			if err == nil || !strings.HasPrefix(err.Error(), "b: ") || !slices.Equal(tr.steps, []string{"start a", "stop a"}) {
				t.Fatalf("%v, %v", tr.steps, err)
			}
		})
	}
}

func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		stuck := Service{Name: "stuck", Stop: time.Second, Run: func(_ context.Context, ready func()) error {
			ready()
			<-release
			return nil
		}}
		err := Run(ctx, []Service{stuck}, cancel)
		if err == nil || !strings.Contains(err.Error(), "did not stop") {
			t.Fatal(err)
		}
		close(release)
	})
}
