package topicrpc

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/parley-chat/parley/server/internal/codec"
)

// rawMessage is a message as it passes a link.
type rawMessage struct{ bytes []byte }

// rawCodec passes messages on without looking into them.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (rawCodec) Marshal(m any) ([]byte, error) {
	r, ok := m.(*rawMessage)
	if !ok {
		return nil, fmt.Errorf("topicrpc: %T is not raw", m)
	}
	return r.bytes, nil
}

// Unmarshal implements connect.Codec. The bytes are connect's own.
func (rawCodec) Unmarshal(b []byte, m any) error {
	r, ok := m.(*rawMessage)
	if !ok {
		return fmt.Errorf("topicrpc: %T is not raw", m)
	}
	r.bytes = slices.Clone(b)
	return nil
}

// encoded is a response of another server. It is decoded only for clients that want JSON, and
// for conditional requests.
type encoded struct {
	wire []byte
	kind protoreflect.MessageType

	once    sync.Once
	message proto.Message
	err     error
}

var (
	_ codec.Encoded = (*encoded)(nil)
	_ proto.Message = (*encoded)(nil)
)

func (e *encoded) decode() (proto.Message, error) {
	e.once.Do(func() {
		e.message = e.kind.New().Interface()
		e.err = proto.Unmarshal(e.wire, e.message)
	})
	return e.message, e.err
}

// ProtoReflect implements proto.Message.
func (e *encoded) ProtoReflect() protoreflect.Message {
	m, _ := e.decode() // what cannot be read is empty, as far as it cannot
	return m.ProtoReflect()
}

// AppendWire implements codec.Encoded.
func (e *encoded) AppendWire(dst []byte) ([]byte, error) { return append(dst, e.wire...), nil }

// AppendJSON implements codec.Encoded.
func (e *encoded) AppendJSON(dst []byte) ([]byte, error) {
	m, err := e.decode()
	if err != nil {
		return nil, err
	}
	return codec.JSON.MarshalAppend(dst, m)
}

// kinds are the types of a procedure's messages.
func kinds(s connect.Spec) (request, response protoreflect.MessageType, err error) {
	method, ok := s.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, nil, fmt.Errorf("topicrpc: no description of %s", s.Procedure)
	}
	if request, err = protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName()); err != nil {
		return nil, nil, err
	}
	response, err = protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	return request, response, err
}

func marshal(m any) (*rawMessage, error) {
	pb, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("topicrpc: %T is not a message", m)
	}
	b, err := proto.Marshal(pb)
	return &rawMessage{b}, err
}

// newClient makes a client of a procedure of another server. Nothing is compressed between
// servers.
func newClient(client connect.HTTPClient, base, procedure string) *connect.Client[rawMessage, rawMessage] {
	return connect.NewClient[rawMessage, rawMessage](client, base+procedure, connect.WithCodec(rawCodec{}),
		connect.WithAcceptCompression("gzip", nil, nil))
}

// reasonOf is the reason of an error of Parley; empty for others.
func reasonOf(e *connect.Error) string {
	for _, d := range e.Details() {
		if v, err := d.Value(); err == nil {
			if info, ok := v.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return ""
}

// retryAfter is the header that goes with an error to be repeated.
const retryAfter = "Retry-After"

// passed is an error of another server as this one's.
func passed(e *connect.Error) *connect.Error {
	out := connect.NewError(e.Code(), errors.New(e.Message()))
	for _, d := range e.Details() {
		out.AddDetail(d)
	}
	if after := e.Meta().Get(retryAfter); after != "" {
		out.Meta().Set(retryAfter, after)
	}
	return out
}
