package consume

import (
	"errors"
	"fmt"
)

// Class says what to do about a failure.
type Class uint8

// The classes of failures.
const (
	Unknown       Class = iota
	Permanent           // the record will never be right
	Downstream          // somebody who is served is away; nothing is lost by skipping
	Authoritative       // the store or Kafka is away
	Fatal               // the engine must start anew
)

// String returns the class's name.
func (c Class) String() string {
	return [...]string{"unknown", "permanent", "downstream", "authoritative", "fatal"}[c]
}

// Failure is an error of a class. Reason must not hold any content of the record.
type Failure struct {
	Class  Class
	Reason string
	Err    error
}

// Error returns class and reason.
func (f *Failure) Error() string { return f.Class.String() + ": " + f.Reason }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Fail makes a Failure.
func Fail(c Class, reason string, err error) error {
	return &Failure{Class: c, Reason: reason, Err: err}
}

func classOf(err error) Class {
	var f *Failure
	if errors.As(err, &f) {
		return f.Class
	}
	return Unknown
}

// reasonOf is what of an error may stand in a dead letter: class and reason, never
// the text of an error that nobody has looked at.
func reasonOf(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Error()
	}
	return fmt.Sprintf("unknown: %T", err)
}
