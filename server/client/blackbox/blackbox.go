// Package blackbox tests a client in any language by what an app shows at the end.
//
// [Run] starts a server, a proxy with faults in front of it, and the client as a child process, which speaks a
// protocol of JSON lines on its standard input and output. Each [Scenario] changes the user's chats, disturbs the
// client, and compares what the client shows with what the store has. Only the results count: a client may make any
// calls, in any order.
//
// The package owns the scenarios, the proxy and the protocol, which server/docs/write-a-client.md describes. It does
// not own the rules of a client, nor the state machine that package conformance tests call by call.
//
// # Files
//
// blackbox.go runs scenarios and reports. protocol.go has the lines, child.go the client under test. server.go starts
// the server, user.go calls it, proxy.go and conn.go stand in front of it. judge.go compares. world.go is what a
// scenario works with, and the scenarios are in the files that start with scenarios.
//
// # Concurrency
//
// Run is safe for concurrent use: each scenario has its own server, proxy and client.
package blackbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Config sets up a Run. Server, Client and Out are required.
type Config struct {
	Server  string         // path of the server's program
	Client  []string       // command of the client under test, with its arguments
	Only    *regexp.Regexp // names of the scenarios to run; nil: all
	Seed    uint64         // of all faults
	Timeout time.Duration  // how long the client may take to show what the store has
	Long    bool           // also scenarios that take more than a minute
	// Parallel is how many scenarios run at a time, each with a server and a client of its own; at least one does.
	Parallel int
	Out      io.Writer // the report
	Log      io.Writer // standard error of the client; nil: none
}

// Scenario is one story of a user, and what the client must show at its end.
type Scenario struct {
	Name string
	Must string // what the user of the app must see, in one sentence
	Long bool   // takes more than a minute
	// Needs lists abilities without which the scenario does not run.
	Needs []string

	run func(*world)
}

// Outcome is what became of a scenario.
type Outcome struct {
	Scenario string
	NotRun   string // why it did not run; empty if it ran
	Err      error  // what the client showed instead; nil if it passed
}

// Scenarios returns all scenarios in the order in which they run.
func Scenarios() []Scenario {
	var all []Scenario
	for _, part := range []func() []Scenario{
		messageScenarios, faultScenarios, memberScenarios, markScenarios, deviceScenarios,
	} {
		all = append(all, part()...)
	}
	return all
}

// Run runs the scenarios, some at a time, and reports each of them when it has ended. An error says that the test could
// not run, not that the client failed.
func Run(ctx context.Context, cfg Config) ([]Outcome, error) {
	if len(cfg.Client) == 0 {
		return nil, errors.New("no command of a client")
	}
	list := slices.DeleteFunc(Scenarios(), func(s Scenario) bool {
		return cfg.Only != nil && !cfg.Only.MatchString(s.Name)
	})
	if len(list) == 0 {
		return nil, errors.New("no scenario has such a name")
	}
	ctx, cancel := context.WithCancelCause(ctx) // for the others, when one cannot run
	defer cancel(nil)
	var mu sync.Mutex // guards what follows, and the report
	out, failed, began := make([]Outcome, len(list)), 0, time.Now()
	room := make(chan struct{}, max(cfg.Parallel, 1))
	var running sync.WaitGroup
	for i, s := range list {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			start := time.Now()
			o, err := cfg.play(ctx, s)
			if err != nil {
				cancel(fmt.Errorf("%s: %w", s.Name, err))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[i] = o
			if o.Err != nil {
				failed++
			}
			report(cfg.Out, s, o, time.Since(start))
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	fmt.Fprintf(cfg.Out, "%d of %d scenarios failed, in %s, seed %d\n", failed, len(out),
		time.Since(began).Round(time.Second), cfg.Seed)
	return out, nil
}

func report(w io.Writer, s Scenario, o Outcome, took time.Duration) {
	took = took.Round(100 * time.Millisecond)
	switch {
	case o.NotRun != "":
		fmt.Fprintf(w, "not run  %s: %s\n", s.Name, o.NotRun)
	case o.Err != nil:
		fmt.Fprintf(w, "FAIL     %s (%s)\n         must: %s\n         %s\n", s.Name, took, s.Must, o.Err)
	default:
		fmt.Fprintf(w, "PASS     %s (%s)\n", s.Name, took)
	}
}

// play runs one scenario in a directory of its own.
func (cfg *Config) play(ctx context.Context, s Scenario) (Outcome, error) {
	o := Outcome{Scenario: s.Name}
	if s.Long && !cfg.Long {
		o.NotRun = "takes more than a minute: --long"
	}
	if o.NotRun != "" {
		return o, nil
	}
	dir, err := os.MkdirTemp("", "parley-conformance-*")
	if err != nil {
		return o, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a client that still runs may write there
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := newWorld(ctx, cfg, s, dir)
	if err != nil {
		return o, err
	}
	defer w.close()
	done := make(chan struct{})
	go func() { // a scenario ends at its first failure
		defer close(done)
		s.run(w)
	}()
	<-done
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	var lacks lackError
	if errors.As(w.err, &lacks) {
		o.NotRun = lacks.Error()
		return o, nil
	}
	var broken *brokenError
	if errors.As(w.err, &broken) {
		return o, broken.err
	}
	o.Err = w.err
	return o, nil
}

// lackError names an ability that a client does not have.
type lackError string

func (e lackError) Error() string { return fmt.Sprintf("the client cannot %q", string(e)) }

// brokenError is a fault of the test itself: of its server, proxy or machine.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
