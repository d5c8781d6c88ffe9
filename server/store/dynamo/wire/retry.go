package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/store"
)

const (
	firstWait = 8 * time.Millisecond
	maxWait   = time.Second
)

// Verdict says what is known of a request that has no good answer.
type Verdict uint8

// The verdicts.
const (
	Answered  Verdict = iota // it would be answered so again
	Refused                  // not carried out, for want of capacity
	Contended                // not carried out, another transaction has the item
	Unreached                // not carried out, the service was not reached, or took the request's time for wrong
	Unheard                  // carried out or not
)

// sentinel is the contract's word for a request that stays so to the end.
func (v Verdict) sentinel() error {
	switch v {
	case Refused:
		return store.ErrThrottled
	case Contended:
		return store.ErrConflict
	}
	return store.ErrUnavailable
}

// judge tells what an error of the SDK means.
func judge(err error, sent bool) Verdict {
	var api smithy.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling":
			return Refused
		case "TransactionConflictException", "ReplicatedWriteConflictException":
			return Contended
		case "TransactionInProgressException": // an earlier attempt of ours
			return Unheard
		case "TransactionCanceledException":
			return judgeReasons(err)
		}
		// The SDK marks a refused signature so, if the answer's date tells that the clocks
		// differ, and corrects the time of the next request.
		var skewed interface{ RetryableError() bool }
		if errors.As(err, &skewed) && skewed.RetryableError() {
			return Unreached
		}
		var answer *awshttp.ResponseError
		if errors.As(err, &answer) && answer.HTTPStatusCode() >= 500 {
			return Unheard
		}
		return Answered
	}
	if !sent {
		return Unreached
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return Unreached
	}
	return Unheard
}

// judgeReasons tells what a cancelled transaction means: as long as one item was not
// looked at, nobody knows all failed conditions.
func judgeReasons(err error) Verdict {
	var cancelled *types.TransactionCanceledException
	if !errors.As(err, &cancelled) {
		return Answered
	}
	v := Answered
	for _, r := range cancelled.CancellationReasons {
		switch Code(r) {
		case "ThrottlingError", "ProvisionedThroughputExceeded":
			v = Refused
		case "TransactionConflict":
			return Contended
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

// Try sends a request until it is answered or the time is up, and returns the last
// error of the SDK, if any, and what is known of it; open says that an attempt may
// have been carried out without an answer. Repeatable requests may be sent again
// even so.
func (c *Client) Try(ctx context.Context, repeatable bool, send func(context.Context) error) (v Verdict, open bool, err error) {
	for n := 0; ; n++ {
		sent := false
		attempt, cancel := context.WithTimeout(context.WithValue(ctx, sentKey{}, &sent), c.cfg.Attempt)
		c.requests.Add(1)
		err = send(attempt)
		late := attempt.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return Answered, open, nil
		}
		v = judge(err, sent)
		switch v {
		case Answered:
			return v, open, err
		case Refused:
			c.throttled.Add(1)
		case Contended:
			c.conflicts.Add(1)
		case Unheard:
			c.lost.Add(1)
			open = true
			if late { // what broke one connection may have broken those that idle, which nobody would notice
				c.hangUp()
			}
			if !repeatable {
				return v, open, err
			}
		}
		if !c.Pause(ctx, n) {
			return v, open, err
		}
	}
}

// Pause waits before repetition n, from 0, and reports whether there is time for it.
func (c *Client) Pause(ctx context.Context, n int) bool {
	wait := rand.N(min(firstWait<<min(n, 10), maxWait)) // full jitter
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait {
		return false
	}
	return c.cfg.Sleep(ctx, wait) == nil && ctx.Err() == nil
}

// Left counts n items that a batch left unprocessed.
func (c *Client) Left(n int) { c.throttled.Add(int64(n)) }

// Unprocessed is the error of a batch that ran out of time.
func Unprocessed(ctx context.Context) error {
	if err := callerEnded(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: parts of a batch stay unprocessed", store.ErrThrottled)
}

// Read sends a request that changes nothing. Errors are those of the contract.
func (c *Client) Read(ctx context.Context, send func(context.Context) error) error {
	v, _, err := c.Try(ctx, true, send)
	if err == nil {
		return nil
	}
	return Ended(ctx, v, false, err)
}

// Ended is the contract's error for a request that got no good answer: bare where it
// was not carried out, store.ErrAmbiguous where that is not known.
func Ended(ctx context.Context, v Verdict, open bool, err error) error {
	caller := callerEnded(ctx)
	switch {
	case open && caller != nil:
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, caller)
	case open:
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, line{err})
	case caller != nil:
		return caller
	}
	var api smithy.APIError
	if v == Answered && errors.As(err, &api) {
		switch api.ErrorCode() {
		case "ValidationException", "SerializationException":
			return fmt.Errorf("%w: %w", store.ErrInvalid, line{errors.New(api.ErrorMessage())})
		case "ResourceNotFoundException":
			return fmt.Errorf("%w: %w", store.ErrUnavailable, ErrNoTables)
		}
	}
	return fmt.Errorf("%w: %w", v.sentinel(), line{err})
}

// line is an error in one line that is not long: the service tells of a signature that is
// not right in many, with the request that it would have signed.
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
