package topicrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/store"
)

// WrapUnary implements connect.Interceptor.
func (r *Router) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		at, err := r.slotKeyOf(req.Any())
		if err != nil {
			return nil, err
		}
		if at.all != nil {
			return r.everywhere(ctx, at.all, req, next)
		}
		return r.call(ctx, at.slot, req, next)
	}
}

// call makes a call in a slot, wherever that is.
func (r *Router) call(
	ctx context.Context, slot int, req connect.AnyRequest, next connect.UnaryFunc,
) (res connect.AnyResponse, err error) {
	repeats := false
	err = r.until(ctx, patienceOf(req.Any()), func(ctx context.Context) (err error) {
		res, err = r.once(ctx, slot, req, next)
		if errors.Is(err, store.ErrAmbiguous) && ctx.Err() == nil && repeatable(req.Any()) {
			repeats = true
			return fmt.Errorf("%w: %w", errNoOwner, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if repeats {
		return asFirst(res)
	}
	return res, nil
}

// asFirst is the answer of a publish that the router has repeated, as that of its first try. It is not
// known which try has stored the messages. To the client the request is one, and a client that
// has made it once would take replayed for another producer's use of its number.
func asFirst(res connect.AnyResponse) (connect.AnyResponse, error) {
	m := res.Any()
	if e, ok := m.(*encoded); ok {
		decoded, err := e.decode()
		if err != nil {
			return nil, err
		}
		m = decoded
	}
	published, ok := m.(*topicv1.PublishResponse)
	if !ok {
		return nil, fmt.Errorf("topicrpc: %T is no answer of a publish", m)
	}
	for _, x := range published.GetResults() {
		x.Replayed = false
	}
	out := connect.NewResponse(published)
	maps.Copy(out.Header(), res.Header())
	return out, nil
}

func (r *Router) once(
	ctx context.Context, slot int, req connect.AnyRequest, next connect.UnaryFunc,
) (connect.AnyResponse, error) {
	if s, leave, ok := r.cfg.Slots.Enter(slot); ok {
		defer leave()
		res, err := next(With(ctx, s), req)
		return res, local(err)
	}
	client, base, err := r.owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	_, kind, err := kinds(req.Spec())
	if err != nil {
		return nil, err
	}
	m, err := marshal(req.Any())
	if err != nil {
		return nil, err
	}
	out := connect.NewRequest(m)
	if err := introduce(out.Header(), r.cfg.Identify(ctx), slot); err != nil {
		return nil, err
	}
	res, err := newClient(client, base, req.Spec().Procedure).CallUnary(ctx, out)
	if err != nil {
		return nil, judge(ctx, err)
	}
	return connect.NewResponse(&encoded{wire: res.Msg.bytes, kind: kind}), nil
}
