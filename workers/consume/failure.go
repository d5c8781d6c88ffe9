package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/parley-chat/parley/server/kafka"
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
	Ignored             // the record is nothing to this consumer
)

// String returns the class's name.
func (c Class) String() string {
	return [...]string{"unknown", "permanent", "downstream", "authoritative", "fatal", "ignored"}[c]
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

// Reason is what of an error may stand in a dead letter: class and reason, never
// the text of an error that nobody has looked at.
func Reason(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Error()
	}
	var p *panicked
	if errors.As(err, &p) {
		return p.Error()
	}
	return fmt.Sprintf("unknown: %T", err)
}

type redriven struct{}

// WithRedrive marks the context of a handler whose record comes from the dead
// letters.
func WithRedrive(ctx context.Context) context.Context {
	return context.WithValue(ctx, redriven{}, true)
}

// Redriven reports whether a handler's record comes from the dead letters.
func Redriven(ctx context.Context) bool { return ctx.Value(redriven{}) != nil }

// Call calls a handler; a panic of it is an unknown failure.
func Call(ctx context.Context, handle Handler, r *kafka.Record) error {
	return guard(func() error { return handle(ctx, r) })
}

func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, debug.Stack()}
		}
	}()
	return f()
}

// panicked is a panic of a handler. What it panicked with may be content: it is for
// the log only.
type panicked struct {
	value any
	stack []byte
}

// Error says no more than a dead letter may.
func (*panicked) Error() string { return "unknown: the handler panicked" }
