package consume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Class says what to do about a failure.
type Class uint8

// The classes of failures. Their names are part of dead letters and of the operators' API.
const (
	Unknown       Class = iota
	Permanent           // the record will never be right
	Downstream          // the receiver of the result is unavailable; the record may be skipped without loss
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

// classes is the table of errors that are no Failure; the first line that fits decides. An
// error that is not in it is Unknown: it is tried again a limited number of times.
var classes = []struct {
	is    func(error) bool
	class Class
}{
	// Transient failures: the store or the network is unavailable, or another process
	// changed the same row.
	{errIs(store.ErrUnavailable), Authoritative},
	{errIs(store.ErrThrottled), Authoritative},
	{errIs(store.ErrConflict), Authoritative},
	{errIs(store.ErrAmbiguous), Authoritative},
	{errIs(store.ErrFull), Authoritative},
	{errIs(store.ErrClosed), Authoritative},
	{errAs[*store.ConditionError], Authoritative},
	{errAs[*net.OpError], Authoritative},
	// Permanent failures: the bytes are not what they claim to be, or the store refuses
	// their effect as it stands.
	{errIs(event.ErrForeign), Ignored}, // wraps ErrSchema
	{errIs(event.ErrSchema), Permanent},
	{errIs(store.ErrInvalid), Permanent},
}

func errIs(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func errAs[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// ClassOf returns the class of an error: that of a Failure, or that of the table.
func ClassOf(err error) Class {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Class
	}
	for _, c := range classes {
		if c.is(err) {
			return c.class
		}
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
	return fmt.Sprintf("%s: %T", ClassOf(err), err)
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
