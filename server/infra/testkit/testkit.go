// Package testkit holds the few checks that tests of many packages make in the same way.
// Each of them ends the test when it fails, and says what was expected.
//
// They are called by the test's own goroutine, as everything that ends a test.
package testkit

import (
	"reflect"
	"testing"
	"time"
)

const (
	patience = 2 * time.Minute      // far above what a healthy program takes on a busy machine
	pause    = 5 * time.Millisecond // between two checks of a condition
)

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got error %v, want none", err)
	}
}

// Value takes what a function returns and gives the value to a test that needs it. The test
// ends if there is an error instead: Value(os.ReadFile(name))(t).
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(t, err)
		return v
	}
}

// Equal ends the test if got is not deeply equal to want. Messages of protocol buffers are
// not for Equal: their inner state differs between equal ones.
func Equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %+v, want %+v", what, got, want)
	}
}

// Eventually returns when ok does, which others bring about, and ends the test if that takes
// more than two minutes. It is no measurement: a test that is about a time runs in
// a bubble of testing/synctest.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for what never came: %s", patience, what)
		}
	}
}

// Succeeds returns when try does without an error, and ends the test with the last error if
// that takes more than two minutes.
func Succeeds(t testing.TB, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("tried for %v in vain: %s: %v", patience, what, err)
		}
	}
}
