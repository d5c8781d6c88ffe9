package topicrpc

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/link/caller"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// slotHeader has the slot of a call that a server passes on. It counts on a link only.
const slotHeader = "Parley-Slot"

// introduce writes the caller and the slot of a call into its headers.
func introduce(h http.Header, id Identity, slot int) error {
	h.Set(slotHeader, strconv.Itoa(slot))
	return caller.Caller{Principal: id.Principal, Operator: id.Operator, Creator: id.Creator, Session: id.Token.SessionID,
		ExpiresAt: id.Token.ExpiresAt}.Introduce(h)
}

// forwardedCall is a call that another process passes on.
type forwardedCall struct {
	identity Identity
	slot     int // anySlot: what the call says
}

// anySlot is the slot of a call of a process that knows no slots.
const anySlot = -1

type forwardedCallKey struct{}

// Admit serves calls that other processes forward, and records their caller and slot. A call of a
// Router goes to slots, which has a SlotInterceptor. A call of a process without slots goes to
// router, or is refused if router is nil. Admit refuses all other calls.
func Admit(slots, router http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := readVisit(r.Header)
		next := slots
		if v.slot == anySlot {
			next = router
		}
		if err != nil || next == nil {
			http.Error(w, "not a call that a server passes on", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), forwardedCallKey{}, v)))
	})
}

func readVisit(h http.Header) (v forwardedCall, err error) {
	who, err := caller.From(h)
	if err != nil {
		return v, err
	}
	v.identity = Identity{
		Caller: topic.Caller{Principal: who.Principal, Operator: who.Operator, Creator: who.Creator},
		Token:  auth.Principal{SessionID: who.Session, ExpiresAt: who.ExpiresAt}, Carried: true,
	}
	if !who.Operator {
		v.identity.Token.UserID = who.Principal // a revocation of the user covers it
	}
	if h.Get(slotHeader) == "" {
		v.slot = anySlot
		return v, nil
	}
	if v.slot, err = strconv.Atoi(h.Get(slotHeader)); err == nil && v.slot < 0 {
		err = errSlot
	}
	return v, err
}

// errSlot says that there cannot be such a slot.
var errSlot = errors.New("topicrpc: no slot")

// ForwardedCaller is the caller of a call that another process passes on; false for other
// calls.
func ForwardedCaller(ctx context.Context) (Identity, bool) {
	v, ok := ctx.Value(forwardedCallKey{}).(forwardedCall)
	return v.identity, ok
}

// SlotInterceptor is an interceptor for calls that other servers pass on: they are served here or
// nowhere.
type SlotInterceptor struct{ slots Slots }

var _ connect.Interceptor = (*SlotInterceptor)(nil)

// NewSlotInterceptor makes a SlotInterceptor.
func NewSlotInterceptor(s Slots) *SlotInterceptor { return &SlotInterceptor{s} }

// enter returns the service of a call's slot. If the slot is to be this process's it is
// taken first.
func (d *SlotInterceptor) enter(ctx context.Context) (context.Context, func(), error) {
	v, _ := ctx.Value(forwardedCallKey{}).(forwardedCall) // Admit has let it in
	s, leave, ok := d.slots.Enter(v.slot)
	if !ok {
		soon, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := d.slots.Refresh(soon); err == nil {
			s, leave, ok = d.slots.Enter(v.slot)
		}
	}
	if !ok {
		return nil, nil, refusal.New(refusal.NoOwner, "this server does not have the topic")
	}
	return With(ctx, s), leave, nil
}

// WrapUnary implements connect.Interceptor.
func (d *SlotInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		in, leave, err := d.enter(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		res, err := next(in, req)
		if err = local(err); err != nil {
			return nil, err
		}
		return res, nil
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (d *SlotInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		in, leave, err := d.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		return next(in, conn)
	}
}

// WrapStreamingClient implements connect.Interceptor; there are no clients here.
func (d *SlotInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
