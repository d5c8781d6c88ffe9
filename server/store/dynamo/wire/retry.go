package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
)

const (
	firstWait = 8 * time.Millisecond
	maxWait   = time.Second
)

// Class is the retry classification of a failed request.
type Class uint8

// The classes.
const (
	Final       Class = iota // a retry would get the same answer
	Throttled                // not executed, for want of capacity
	Conflicting              // not executed, another transaction has the item
	NotSent                  // not executed: the service was not reached, or refused the time in the signature
	Ambiguous                // executed or not
)

// sentinel is the contract's error for a request whose retries end in this class.
func (c Class) sentinel() error {
	switch c {
	case Throttled:
		return store.ErrThrottled
	case Conflicting:
		return store.ErrConflict
	}
	return store.ErrUnavailable
}

// classify classifies an error of the SDK.
func classify(err error, sent bool) Class {
	var api smithy.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling":
			return Throttled
		case "TransactionConflictException", "ReplicatedWriteConflictException":
			return Conflicting
		case "TransactionInProgressException": // an earlier attempt of ours
			return Ambiguous
		case "TransactionCanceledException":
			return classifyReasons(err)
		}
		// The SDK marks a refused signature like this if the date of the answer shows that
		// the clocks differ, and corrects the time of the next request.
		var skewed interface{ RetryableError() bool }
		if errors.As(err, &skewed) && skewed.RetryableError() {
			return NotSent
		}
		var answer *awshttp.ResponseError
		if errors.As(err, &answer) && answer.HTTPStatusCode() >= 500 {
			return Ambiguous
		}
		return Final
	}
	if !sent {
		return NotSent
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return NotSent
	}
	return Ambiguous
}

// classifyReasons classifies a cancelled transaction. While one item was not evaluated, not
// all failed conditions are known.
func classifyReasons(err error) Class {
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) {
		return Final
	}
	v := Final
	for _, r := range cancelled.CancellationReasons {
		switch Code(r) {
		case "ThrottlingError", "ProvisionedThroughputExceeded":
			v = Throttled
		case "TransactionConflict":
			return Conflicting
		}
	}
	return v
}

// Code is a reason's code, "" for none.
func Code(r types.CancellationReason) string {
	if r.Code == nil {
		return ""
	}
	return *r.Code
}

// Do sends a request, with retries until the time is up. It returns the last error of the
// SDK, if any, and its class; ambiguous says that an attempt may have been executed
// without an answer. After such an attempt only a repeatable request is sent again.
// An attempt that the end of the time cuts short says nothing of the service: the error is
// that of the attempt before it.
func (c *Client) Do(
	ctx context.Context, repeatable bool, send func(context.Context) error,
) (class Class, ambiguous bool, err error) {
	var unavailable error // of the attempt before, which got no usable answer
	for n := 0; ; n++ {
		sent := false
		attempt, cancel := context.WithTimeout(context.WithValue(ctx, sentKey{}, &sent), c.cfg.Attempt)
		c.requests.Add(1)
		err = send(attempt)
		late := attempt.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return Final, ambiguous, nil
		}
		class = classify(err, sent)
		if ctx.Err() != nil && unavailable != nil && (class == NotSent || class == Ambiguous) {
			err = unavailable
		}
		unavailable = nil
		switch class {
		case Final:
			return class, ambiguous, err
		case Throttled:
			c.throttled.Add(1)
		case Conflicting:
			c.conflicts.Add(1)
		case NotSent:
			unavailable = err
		case Ambiguous:
			unavailable = err
			c.lost.Add(1)
			ambiguous = true
			if late { // idle connections may be broken, too, and nothing else detects that
				c.closeIdle()
			}
			if !repeatable {
				return class, ambiguous, err
			}
		}
		if !c.Backoff(ctx, n) {
			return class, ambiguous, err
		}
	}
}

// Backoff waits before retry n, from 0, and reports whether there is time for it.
func (c *Client) Backoff(ctx context.Context, n int) bool {
	pause := wait.Jittered(firstWait, maxWait, n)
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
		return false
	}
	return c.cfg.Sleep(ctx, pause) == nil && ctx.Err() == nil
}

// CountUnprocessed counts n items that a batch left unprocessed.
func (c *Client) CountUnprocessed(n int) { c.throttled.Add(int64(n)) }

// UnprocessedError is the error of a batch that ran out of time.
func UnprocessedError(ctx context.Context) error {
	if err := callerErr(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: parts of a batch stay unprocessed", store.ErrThrottled)
}

// Read sends a request that changes nothing. Errors are those of the contract.
func (c *Client) Read(ctx context.Context, send func(context.Context) error) error {
	class, _, err := c.Do(ctx, true, send)
	if err == nil {
		return nil
	}
	return FinalError(ctx, class, false, err)
}

// FinalError is the contract's error for a request that failed: store.ErrAmbiguous if it
// may have been executed.
func FinalError(ctx context.Context, class Class, ambiguous bool, err error) error {
	caller := callerErr(ctx)
	switch {
	case ambiguous && caller != nil:
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, caller)
	case ambiguous:
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, line{err})
	case caller != nil:
		return caller
	}
	var api smithy.APIError
	if class == Final && errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ValidationException", "SerializationException":
			return fmt.Errorf("%w: %w", store.ErrInvalid, line{errors.New(api.ErrorMessage())})
		case "ResourceNotFoundException":
			return fmt.Errorf("%w: %w", store.ErrUnavailable, ErrNoTables)
		}
	}
	return fmt.Errorf("%w: %w", class.sentinel(), line{err})
}

// line is an error in one short line: for a wrong signature the service answers many, with
// the request that it would have signed.
type line struct{ error }

const maxLine = 300 // bytes

// Error implements error.
func (l line) Error() string {
	s := strings.Join(strings.Fields(l.error.Error()), " ")
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "…"
	}
	return s
}

// Unwrap returns the whole error.
func (l line) Unwrap() error { return l.error }
