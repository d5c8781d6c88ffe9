package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// A stop that comes while a service is not ready yet ends those that are there,
// in reverse; the rest never runs.
func TestStopDuringStart(t *testing.T) {
	var tr trace
	ctx, cancel := context.WithCancel(t.Context())
	slow := Service{Name: "slow", Run: func(own context.Context, _ func()) error {
		tr.add("start slow")
		cancel()
		<-own.Done()
		tr.add("stop slow")
		return nil
	}}
	err := Run(ctx, []Service{tr.service("a"), slow, tr.service("c")}, func() { tr.add("started") })
	if want := []string{"start a", "start slow", "stop slow", "stop a"}; err != nil || !slices.Equal(tr.steps, want) {
		t.Fatalf("%v, %v", tr.steps, err)
	}
}

// What goes wrong while stopping is reported, and the others are stopped all the same.
func TestFailureWhileStopping(t *testing.T) {
	for name, end := range map[string]func() error{
		"error": func() error { return errors.New("broken") },
		"panic": func() error { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			var tr trace
			ctx, cancel := context.WithCancel(t.Context())
			bad := Service{Name: "b", Run: func(own context.Context, ready func()) error {
				ready()
				<-own.Done()
				return end()
			}}
			err := Run(ctx, []Service{tr.service("a"), bad, tr.service("c")}, cancel)
			if want := []string{"start a", "start c", "stop c", "stop a"}; err == nil ||
				!strings.Contains(err.Error(), "broken") || !slices.Equal(tr.steps, want) {
				t.Fatalf("%v, %v", tr.steps, err)
			}
		})
	}
}

// Services do not see the end of the context that stops the group: they are
// stopped one after the other. Its values they see.
func TestServicesAreStoppedByTheGroupOnly(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 7))
	var below context.Context
	lower := Service{Name: "lower", Run: func(own context.Context, ready func()) error {
		below = own
		ready()
		<-own.Done()
		return nil
	}}
	upper := Service{Name: "upper", Run: func(own context.Context, ready func()) error {
		ready()
		<-own.Done()
		if below.Err() != nil || below.Value(key{}) != 7 {
			return errors.New("what it stands on is gone")
		}
		return nil
	}}
	if err := Run(ctx, []Service{lower, upper}, cancel); err != nil {
		t.Fatal(err)
	}
}

func TestRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var starts int
		s := Restarted("worker", slog.New(slog.DiscardHandler), func(ctx context.Context, _ func()) error {
			if starts++; starts < 3 {
				return nil // an end without an error is an end, too
			}
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, func() {}) }()
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if starts != 3 {
			t.Errorf("%d starts in %v, 3 wanted", starts, time.Since(began))
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stopped: %v", err)
		}
	})
}

// A request under way is answered; one that takes longer than the grace is cut off.
func TestServeHTTP(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("slow ", slow), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			arrived, answer := make(chan struct{}), make(chan struct{})
			srv := &http.Server{ReadHeaderTimeout: time.Second,
				Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					close(arrived)
					select {
					case <-answer:
					case <-r.Context().Done():
					}
				})}
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error, 1)
			go func() {
				res, err := http.Get("http://" + l.Addr().String())
				if err == nil {
					_ = res.Body.Close()
				}
				got <- err
			}()
			go func() { <-arrived; cancel() }()
			grace := time.Minute
			if slow {
				grace = time.Millisecond
			}
			cut, err := ServeHTTP(ctx, srv, l, grace, func() {
				if !slow {
					close(answer)
				}
			})
			if err != nil || cut != slow {
				t.Errorf("cut %v, %v", cut, err)
			}
			if err := <-got; (err != nil) != slow {
				t.Errorf("the request: %v", err)
			}
		})
	}
}

func TestServeHTTPFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := ServeHTTP(t.Context(), &http.Server{ReadHeaderTimeout: time.Second}, l, time.Second, nil); err == nil {
		t.Error("served on a closed listener")
	}
}
