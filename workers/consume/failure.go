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

// The classes of failures. Their names are part of dead letters and of the operators' API.
const (
	Unknown       Class = iota
	Permanent           // the record will never be right
	Downstream          // somebody who is served is unavailable; the record may be skipped without loss
	Authoritative       // the store or Kafka is unavailable; the record must be retried
	Fatal               // the engine must start again
	Ignored             // the record does not concern this consumer
)

// String returns the class's name.
func (c Class) String() string {
	return [...]string{"unknown", "permanent", "downstream", "authoritative", "fatal", "ignored"}[c]
}

// Failure is an error of a class. Reason must not contain any content of the record.
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

// Reason is the part of an error that a dead letter may contain: class and reason, never
// the text of an error that may quote the record.
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

// WithRedrive marks the context of a handler whose record comes from a dead letter.
func WithRedrive(ctx context.Context) context.Context {
	return context.WithValue(ctx, redriven{}, true)
}

// Redriven reports whether a handler's record comes from a dead letter.
func Redriven(ctx context.Context) bool { return ctx.Value(redriven{}) != nil }

// Call calls a handler, and turns a panic into an unknown failure.
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

// panicked is a panic of a handler. Its value may be content of the record: it is for the
// log only.
type panicked struct {
	value any
	stack []byte
}

// Error says no more than a dead letter may.
func (*panicked) Error() string { return "unknown: the handler panicked" }
