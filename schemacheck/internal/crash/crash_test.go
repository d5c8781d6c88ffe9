package crash_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/parley-chat/parley/schemacheck/internal/crash"
)

func at(list []error, i int) error { return list[i] }

// A panic becomes an error of one line that names what happened and where.
func TestRecover(t *testing.T) {
	fails := func() (err error) {
		defer crash.Recover(&err)
		return at([]error{nil}, 5)
	}
	err := fails()
	if !errors.Is(err, crash.Err) || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "index out of range") || !strings.Contains(err.Error(), "crash_test.go:") {
		t.Errorf("%v", err)
	}
	kept := errors.New("kept")
	works := func() (err error) {
		defer crash.Recover(&err)
		return kept
	}
	if err := works(); !errors.Is(err, kept) {
		t.Errorf("%v", err)
	}
}
