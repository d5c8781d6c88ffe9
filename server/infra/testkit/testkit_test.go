package testkit_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A recorder stands for a test that may end.
type recorder struct {
	testing.TB
	name     string
	said     string   // why the test ended
	log      []string // what it logged
	cleanups []func()
}

func (*recorder) Helper() {}

func (r *recorder) Name() string { return r.name }

func (r *recorder) Logf(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// run runs a test with its cleanups and returns why it ended, or "".
func (r *recorder) run(test func(t testing.TB)) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	for _, f := range r.cleanups {
		f()
	}
	return r.said
}

// ended runs a test and returns why it ended, or "".
func ended(test func(t testing.TB)) string { return new(recorder).run(test) }

func TestChecks(t *testing.T) {
	failure := errors.New("the disk is full")
	for name, tt := range map[string]struct {
		test func(t testing.TB)
		says []string // nothing: the test continues
	}{
		"Must, nil":     {func(t testing.TB) { testkit.Must(t, nil) }, nil},
		"Must, error":   {func(t testing.TB) { testkit.Must(t, failure) }, []string{"the disk is full"}},
		"Value, error":  {func(t testing.TB) { testkit.Value(7, failure)(t) }, []string{"the disk is full"}},
		"Equal, same":   {func(t testing.TB) { testkit.Equal(t, "names", []string{"a"}, []string{"a"}) }, nil},
		"Equal, other":  {func(t testing.TB) { testkit.Equal(t, "age", 41, 42) }, []string{"age", "41", "42"}},
		"Equal, hidden": {func(t testing.TB) { testkit.Equal[any](t, "age", 41, "41") }, []string{"age"}},
		"Equal, nested": {
			func(t testing.TB) { testkit.Equal(t, "ages", [][]int{{1}}, [][]int{{2}}) },
			[]string{"ages", "[[1]]", "[[2]]"},
		},
	} {
		said := ended(tt.test)
		if (said != "") != (tt.says != nil) {
			t.Errorf("%s: ended with %q, want %q", name, said, tt.says)
		}
		for _, part := range tt.says {
			if !strings.Contains(said, part) {
				t.Errorf("%s: %q does not say %q", name, said, part)
			}
		}
	}
	if v := testkit.Value(7, nil)(t); v != 7 {
		t.Errorf("Value gives %d, want 7", v)
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if said := ended(func(t testing.TB) {
			testkit.Eventually(t, "a minute", func() bool { return time.Since(began) >= time.Minute })
		}); said != "" {
			t.Errorf("what comes after a minute: ended with %q", said)
		}
		if said := ended(func(t testing.TB) {
			testkit.Eventually(t, "the tide", func() bool { return false })
		}); !strings.Contains(said, "the tide") {
			t.Errorf("what never comes: ended with %q", said)
		}
		refused, tries := errors.New("refused"), 0
		if said := ended(func(t testing.TB) {
			testkit.Succeeds(t, "the third try", func() error {
				if tries++; tries < 3 {
					return refused
				}
				return nil
			})
		}); said != "" || tries != 3 {
			t.Errorf("what succeeds the third time: %d tries, ended with %q", tries, said)
		}
		if said := ended(func(t testing.TB) {
			testkit.Succeeds(t, "the call", func() error { return refused })
		}); !strings.Contains(said, "the call") || !strings.Contains(said, "refused") {
			t.Errorf("what never succeeds: ended with %q", said)
		}
	})
}
