package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/limit"
)

// SignIn has the limits of callers that have not signed in yet. A client is the network of
// an address, empty for this machine, which has none.
type SignIn struct{ Limits *limit.Limiter }

// AllowCode charges a client, the network around it and the installation with a code that is to
// be sent. retry is more than 0 if it must not be, and says when it may be; then nothing is
// charged. An error refuses, too.
//
// The limit of the network prevents a client with many addresses from using a noticeable part
// of the installation's codes. It comes before the installation, which is asked last.
func (s SignIn) AllowCode(ctx context.Context, client string) (retry time.Duration, err error) {
	costs := make([]limit.Cost, 0, 3)
	if client != "" {
		costs = append(costs, limit.Cost{Rule: limit.OTPAddress, Key: client, Cost: 1})
		if network := limit.KeyOf(limit.Network, client); network != "" {
			costs = append(costs, limit.Cost{Rule: limit.OTPNetwork, Key: network, Cost: 1})
		}
	}
	costs = append(costs, limit.Cost{Rule: limit.OTPGlobal, Key: limit.KeyOf(limit.Installation, ""), Cost: 1})
	return retryOf(s.Limits.Charge(ctx, costs...))
}

// AllowAttempt charges a client with an attempt to sign in.
func (s SignIn) AllowAttempt(ctx context.Context, client string) (retry time.Duration, err error) {
	if client == "" {
		return 0, nil
	}
	return retryOf(s.Limits.Check(ctx, limit.SignIn, client, 1))
}

// retryOf is when to retry what was refused; other errors stay.
func retryOf(err error) (time.Duration, error) {
	if over := new(limit.Refused); errors.As(err, &over) && over.RetryAfter > 0 {
		return over.RetryAfter, nil
	}
	return 0, err
}
