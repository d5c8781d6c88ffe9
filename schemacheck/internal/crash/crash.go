// Package crash makes errors of panics, so that an unexpected failure ends with a line and
// is never taken for a verdict.
//
// It owns the error and its words. The code that recovers a panic documents what the
// recovery ends.
//
// Concurrency: functions are pure and may run together.
package crash

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// Err is what every error of this package wraps.
var Err = errors.New("internal error, please report it with the schemas")

// maxCause bounds what is quoted of a panic, in characters.
const maxCause = 300

// Recover sets the error of a function that panics. It is deferred:
//
//	defer crash.Recover(&err)
func Recover(err *error) {
	if cause := recover(); cause != nil {
		*err = fmt.Errorf("%w: %s%s", Err, schema.Clip(strings.Join(strings.Fields(fmt.Sprint(cause)), " "), maxCause),
			origin(string(debug.Stack())))
	}
}

// origin returns where in this module a stack was before it came to the panic, "" if
// it was never there.
func origin(stack string) string {
	_, after, _ := strings.Cut(stack, "\npanic(")
	for line := range strings.Lines(after) {
		_, file, ours := strings.Cut(strings.TrimSpace(line), "/schemacheck/")
		if file, _, _ = strings.Cut(file, " "); ours && strings.Contains(file, ".go:") {
			return " (" + file + ")"
		}
	}
	return ""
}
