package ops

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/workers/audit"
)

// recordTime is how long the end of a call may take to be written, once the call is over.
const recordTime = 10 * time.Second

// recorded reports whether a call leaves rows for the audit: one that changes something,
// or shows what users wrote. It follows from the contract: a method without
// NO_SIDE_EFFECTS changes something if its request has no field execute, or says it.
func recorded(method protoreflect.MethodDescriptor, req proto.Message) bool {
	m := req.ProtoReflect()
	is := func(field protoreflect.Name) (has, set bool) {
		f := m.Descriptor().Fields().ByName(field)
		if f == nil || f.Kind() != protoreflect.BoolKind || f.IsList() {
			return false, false
		}
		return true, m.Get(f).Bool()
	}
	if o, ok := method.Options().(*descriptorpb.MethodOptions); ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
		_, content := is("content")
		return content
	}
	has, execute := is("execute")
	return !has || execute
}

// record is the rows of one call, if it is one that has some.
type record struct {
	s         *Service
	procedure string
	begun     bool
	entry     *audit.Entry
	result    any  // the last message sent
	changes   bool // as opposed to a call that shows what users wrote
}

// begin writes that a call begins, when its first message has come. A call whose row
// cannot be written does not run.
func (r *record) begin(ctx context.Context, spec connect.Spec, req any) (err error) {
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	msg, isMessage := req.(proto.Message)
	if r.begun || !ok || !isMessage || !recorded(method, msg) {
		return nil
	}
	r.begun = true
	r.changes = method.Options().(*descriptorpb.MethodOptions).GetIdempotencyLevel() != descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	r.entry, err = r.s.log.Begin(ctx, by(ctx), string(method.Name()), asJSON(msg))
	return err
}

// end writes how the call ended; it is deferred, and lets a panic go on. Whoever called
// may have left; it is written nevertheless.
func (r *record) end(ctx context.Context, failure *error) {
	err := *failure
	p := recover()
	if p != nil {
		defer panic(p)
		err = errPanic
	}
	if r.entry == nil {
		return
	}
	code, result := "ok", ""
	if msg, ok := r.result.(proto.Message); ok && r.changes {
		result = asJSON(summary(msg))
	}
	if err != nil {
		public := r.s.public(ctx, r.procedure, err)
		code, result = public.Code().String(), public.Message()
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := r.entry.End(end, code, result); err != nil {
		r.s.cfg.Logger.Error("ops: the end of a call is missing in the audit", "procedure", r.procedure, "by", by(ctx), "code", code, "error", err)
	}
}

// summary is what is kept of an answer: of progress its summary, and no lists.
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

func asJSON(m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil { // a message that was read can be written
		return "{}"
	}
	return string(b)
}

// ListOperatorCalls implements opsv1connect.OpsServiceHandler.
func (s *Service) ListOperatorCalls(ctx context.Context, req *opsv1.ListOperatorCallsRequest) (*opsv1.ListOperatorCallsResponse, error) {
	f := audit.Filter{By: req.GetOperator(), Name: req.GetCall()}
	if t := req.GetAfter(); t != nil {
		f.After = t.AsTime()
	}
	if t := req.GetBefore(); t != nil {
		f.Before = t.AsTime()
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	calls, next, err := s.log.List(ctx, f, size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &opsv1.ListOperatorCallsResponse{NextPageToken: next}
	for _, c := range calls {
		call := &opsv1.OperatorCall{Id: c.ID, BeganAt: stamp(c.Began), Operator: c.By, Call: c.Name, Request: c.Request, Code: c.Code, Result: c.Outcome}
		if !c.Ended.IsZero() {
			call.EndedAt = stamp(c.Ended)
		}
		res.Calls = append(res.Calls, call)
	}
	return res, nil
}
