package authapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	"github.com/parley-chat/parley/server/auth"
)

// Tokenless are the procedures that need no access token, with the size of their requests
// in bytes.
var Tokenless = map[string]int64{
	authv1connect.AuthServiceRequestCodeProcedure:   4 << 10,
	authv1connect.AuthServiceVerifyCodeProcedure:    4 << 10,
	authv1connect.AuthServiceRefreshProcedure:       4 << 10,
	authv1connect.AuthServiceExchangeTokenProcedure: 16 << 10,
}

// Bounds of calls without a token, of one network.
const (
	maxBegun = 256 // that have begun, slow ones included
	maxWork  = 16  // of one procedure that are worked on
)

var errFull = errors.New("authapi: too many are signing in: try again")

// TokenlessLimiter limits how many calls without a token are in progress. A call counts once
// its whole body has arrived, so that slow callers do not use up the limit. Every procedure has
// a limit of its own, so that callers that ask for codes do not keep others from refreshing.
//
// A network is a /24 of IPv4 or a /64 of IPv6, of which one customer may have all addresses.
// The share of a network is enough for many people behind one address, because a call counts
// only while the store works on it.
type TokenlessLimiter struct {
	Client func(r *http.Request) netip.Prefix // network that a request comes from; zero: this machine
	Full   http.HandlerFunc                   // answers calls over maxBegun
	limit  int

	mu       sync.Mutex
	inFlight map[limiterKey]int
}

// limiterKey is what calls are counted by: a procedure or "", and a network or none.
type limiterKey struct {
	procedure string
	network   netip.Prefix
}

type bound struct {
	limiterKey
	limit int
}

// NewTokenlessLimiter makes a TokenlessLimiter that admits limit calls of each procedure.
func NewTokenlessLimiter(
	limit int, client func(r *http.Request) netip.Prefix, full http.HandlerFunc,
) *TokenlessLimiter {
	return &TokenlessLimiter{Client: client, Full: full, limit: limit, inFlight: map[limiterKey]int{}}
}

// visitor is a caller without a token.
type visitor struct {
	limiter *TokenlessLimiter
	client  netip.Prefix
}

type visitorKey struct{}

// Wrap applies the limiter to a procedure in Tokenless. It ignores a token that the request has.
func (d *TokenlessLimiter) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitor{d, d.Client(r)}
		leave, ok := d.enter(bound{limiterKey{network: shared(v.client)}, maxBegun})
		if !ok {
			d.Full(w, r)
			return
		}
		defer leave()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, v)))
	})
}

// enter counts a call under the key of each bound until leave is called. It returns false if one
// of the bounds is reached. Calls from this machine are not bounded by network.
func (d *TokenlessLimiter) enter(bounds ...bound) (leave func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var in []limiterKey
	for _, b := range bounds {
		if b.procedure == "" && !b.network.IsValid() {
			continue
		}
		if d.inFlight[b.limiterKey] >= b.limit {
			return nil, false
		}
		in = append(in, b.limiterKey)
	}
	for _, p := range in {
		d.inFlight[p]++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range in {
			if d.inFlight[p]--; d.inFlight[p] == 0 {
				delete(d.inFlight, p)
			}
		}
	}, true
}

// work wraps the handlers. It counts a call that a TokenlessLimiter admitted, now that its whole
// body has been read.
func work(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		v, ok := ctx.Value(visitorKey{}).(visitor)
		if !ok {
			return next(ctx, req)
		}
		procedure := req.Spec().Procedure
		bounds := []bound{{limiterKey{procedure: procedure}, v.limiter.limit}}
		if v.client.IsValid() {
			bounds = append(bounds, bound{limiterKey{procedure, shared(v.client)}, maxWork})
		}
		leave, ok := v.limiter.enter(bounds...)
		if !ok {
			return nil, errFull
		}
		defer leave()
		return next(ctx, req)
	}
}

// shared is the network whose calls are counted together with those of a client.
func shared(client netip.Prefix) netip.Prefix {
	limit := 24
	if client.Addr().Is6() {
		limit = 64
	}
	p, _ := client.Addr().Prefix(min(limit, max(client.Bits(), 0))) // not valid: it is this machine's
	return p
}

// Enter requires a principal of all calls but those that a TokenlessLimiter admitted.
func Enter(ctx context.Context) error {
	if _, ok := ctx.Value(visitorKey{}).(visitor); ok {
		return nil
	}
	if _, ok := auth.PrincipalFrom(ctx); !ok {
		return auth.ErrMissingToken
	}
	return nil
}

// clientFrom is the network of the caller; "" where it is not known.
func clientFrom(ctx context.Context) string {
	if v, ok := ctx.Value(visitorKey{}).(visitor); ok && v.client.IsValid() {
		return v.client.String()
	}
	return ""
}
