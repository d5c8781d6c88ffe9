package ops

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/workers/ops/redact"
)

// recordTime bounds the writing of a call's end, once the call is over.
const recordTime = 10 * time.Second

// effects is what a call does, as its contract and its request say.
type effects struct {
	changes bool // it changes something, unless it is a dry run
	reveals bool // it shows what users wrote
	execute bool // it is no dry run
}

// effectsOf reads the contract: a method without NO_SIDE_EFFECTS changes something, and a
// request with the field execute is a dry run unless it is set. The field content asks for
// what users wrote, and so does a read that wants a reason.
func effectsOf(method protoreflect.MethodDescriptor, req proto.Message) effects {
	m := req.ProtoReflect()
	field := func(name protoreflect.Name) (has, set bool) {
		f := m.Descriptor().Fields().ByName(name)
		if f == nil || f.Kind() != protoreflect.BoolKind || f.IsList() {
			return false, false
		}
		return true, m.Get(f).Bool()
	}
	if o, ok := method.Options().(*descriptorpb.MethodOptions); ok &&
		o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
		_, content := field("content")
		return effects{reveals: content || m.Descriptor().Fields().ByName("reason") != nil, execute: true}
	}
	has, execute := field("execute")
	return effects{changes: true, execute: !has || execute}
}

// record is what one call leaves behind that changes something or shows what users wrote:
// two lines in the log and, unless it is a dry run, two rows in the audit.
type record struct {
	s         *Service
	procedure string
	started   bool // the first message has come
	effects   effects
	call      string       // name of the RPC; empty: the call leaves nothing behind
	entry     *audit.Entry // nil: no rows
	result    any          // the last message sent
}

// begin records the start of a call, when its first message has come. A call whose row
// cannot be written does not run.
func (r *record) begin(ctx context.Context, spec connect.Spec, req any) (err error) {
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	msg, isMessage := req.(proto.Message)
	if r.started || !ok || !isMessage {
		return nil
	}
	r.started, r.effects = true, effectsOf(method, msg)
	if !r.effects.changes && !r.effects.reveals {
		return nil
	}
	if op, _ := Operator(ctx); r.effects.reveals && !op.Role.Includes(contentRole) {
		return r.s.refuseRole(ctx, r.procedure, contentRole)
	}
	request := asJSON(redacted(msg))
	if r.effects.execute {
		r.entry, err = r.s.audit.BeginOn(ctx, actor(ctx), string(method.Name()), targetOf(msg), request)
		if err != nil {
			return err
		}
	}
	r.call = string(method.Name())
	r.s.cfg.Logger.InfoContext(ctx, "ops: call started", "call", r.call, "by", actor(ctx), "execute", r.effects.execute,
		"request", request)
	return nil
}

// end records how the call ended. It is deferred, and does not stop a panic. It writes even
// if the caller has left.
func (r *record) end(ctx context.Context, failure *error) {
	err := *failure
	p := recover()
	if p != nil {
		defer panic(p)
		err = errPanic
	}
	if r.call == "" {
		return
	}
	code, result := "ok", ""
	if msg, ok := r.result.(proto.Message); ok && r.effects.changes {
		result = asJSON(redacted(summary(msg)))
	}
	if err != nil {
		public := r.s.public(ctx, r.procedure, err)
		code, result = public.Code().String(), public.Message()
		*failure = public // the operator gets the same correlation id
	}
	r.s.cfg.Logger.InfoContext(ctx, "ops: call ended", "call", r.call, "by", actor(ctx), "execute", r.effects.execute,
		"code", code, "result", result)
	if r.entry == nil {
		return
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := r.entry.End(end, code, result); err != nil {
		r.s.cfg.Logger.Error("ops: the end of a call is missing in the audit", "procedure", r.procedure, "by", actor(ctx),
			"code", code, "error", err)
	}
}

// summary is the part of an answer that is recorded: the summary of progress, and no lists.
func summary(m proto.Message) proto.Message {
	r := m.ProtoReflect()
	if f := r.Descriptor().Fields().ByName("summary"); f != nil && f.Message() != nil && r.Has(f) {
		return r.Get(f).Message().Interface()
	}
	out := proto.Clone(m)
	o := out.ProtoReflect()
	o.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.IsList() || f.IsMap() {
			o.Clear(f)
		}
		return true
	})
	return out
}

// redacted returns a message without the fields that its contract marks as secrets.
func redacted(m proto.Message) proto.Message {
	out := proto.Clone(m)
	redact.Secrets(out.ProtoReflect())
	return out
}

// targets has what a request may be about, by the field that names it; the first one counts.
var targets = []struct {
	field protoreflect.Name
	word  string
}{
	{"user_id", "user"}, {"service_id", "service"}, {"session_id", "session"}, {"chat_id", "chat"}, {"topic", "topic"},
}

// targetOf is whom a request is about, in the words of the audit; empty if there is no
// single one.
func targetOf(m proto.Message) string {
	r := m.ProtoReflect()
	for _, t := range targets {
		f := r.Descriptor().Fields().ByName(t.field)
		if f == nil || f.Kind() != protoreflect.StringKind || f.IsList() {
			continue
		}
		if id := r.Get(f).String(); id != "" {
			return t.word + "/" + id
		}
	}
	return ""
}

func asJSON(m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil { // a message that was decoded can be encoded
		return "{}"
	}
	return string(b)
}

// ListOperatorCalls implements opsv1connect.OpsServiceHandler.
func (s *Service) ListOperatorCalls(
	ctx context.Context, req *opsv1.ListOperatorCallsRequest,
) (*opsv1.ListOperatorCallsResponse, error) {
	f := audit.Filter{Actor: req.GetOperator(), Name: req.GetCall(), After: timeOf(req.GetAfter()),
		Before: timeOf(req.GetBefore())}
	calls, next, err := s.audit.List(ctx, f, cmp.Or(int(req.GetPageSize()), defaultPage), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListOperatorCallsResponse{NextPageToken: next}
	for _, c := range calls {
		res.Calls = append(res.Calls, &opsv1.OperatorCall{
			Id: c.ID, BeganAt: timestamp(c.Began), Operator: c.Actor, Call: c.Name, Request: c.Request,
			EndedAt: timestamp(c.Ended), Code: c.Code, Result: c.Result,
		})
	}
	return res, nil
}
