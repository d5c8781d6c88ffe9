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

// Door admits calls without a token, a bounded number at a time. A call takes room when its
// whole body has arrived, so that a slow caller does not keep others out. Each procedure has
// room of its own, so that callers that ask for codes do not keep people from refreshing.
//
// A network is a /24 of IPv4 or a /64 of IPv6, of which one customer may have all addresses.
// Many people behind one address have enough of their share, since room is needed only while
// the store is at work.
type Door struct {
	Client func(r *http.Request) netip.Prefix // network that a request comes from; zero: this machine
	Full   http.HandlerFunc                   // answers those of which too many have begun
	most   int

	mu     sync.Mutex
	inside map[place]int
}

// place is what calls are counted by: a procedure or "", and a network or none.
type place struct {
	procedure string
	network   netip.Prefix
}

type bound struct {
	place
	most int
}

// NewDoor makes a Door with room for a number of calls of each procedure.
func NewDoor(most int, client func(r *http.Request) netip.Prefix, full http.HandlerFunc) *Door {
	return &Door{Client: client, Full: full, most: most, inside: map[place]int{}}
}

// visitor is a caller without a token.
type visitor struct {
	door   *Door
	client netip.Prefix
}

type visitorKey struct{}

// Wrap puts the door in front of a procedure in Tokenless. A token that comes along means
// nothing.
func (d *Door) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitor{d, d.Client(r)}
		leave, ok := d.enter(bound{place{network: shared(v.client)}, maxBegun})
		if !ok {
			d.Full(w, r)
			return
		}
		defer leave()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, v)))
	})
}

// enter counts a call where there is room in all places, until leave is called. This machine
// has no bounds of a network.
func (d *Door) enter(bounds ...bound) (leave func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var in []place
	for _, b := range bounds {
		if b.procedure == "" && !b.network.IsValid() {
			continue
		}
		if d.inside[b.place] >= b.most {
			return nil, false
		}
		in = append(in, b.place)
	}
	for _, p := range in {
		d.inside[p]++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, p := range in {
			if d.inside[p]--; d.inside[p] == 0 {
				delete(d.inside, p)
			}
		}
	}, true
}

// work surrounds the handlers: a call that came through a Door takes room there, now that
// its whole body has been read.
func work(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		v, ok := ctx.Value(visitorKey{}).(visitor)
		if !ok {
			return next(ctx, req)
		}
		procedure := req.Spec().Procedure
		bounds := []bound{{place{procedure: procedure}, v.door.most}}
		if v.client.IsValid() {
			bounds = append(bounds, bound{place{procedure, shared(v.client)}, maxWork})
		}
		leave, ok := v.door.enter(bounds...)
		if !ok {
			return nil, errFull
		}
		defer leave()
		return next(ctx, req)
	}
}

// shared is the network whose calls are counted together with those of a client.
func shared(client netip.Prefix) netip.Prefix {
	most := 24
	if client.Addr().Is6() {
		most = 64
	}
	p, _ := client.Addr().Prefix(min(most, max(client.Bits(), 0))) // not valid: it is this machine's
	return p
}

// Enter requires a principal of all calls but those that came through a Door.
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
