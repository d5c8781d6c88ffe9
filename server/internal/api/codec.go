package api

import (
	"fmt"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/delivery/frame"
)

// batch is a SubscribeResponse whose frames are encoded already, and shared with
// other streams.
type batch struct {
	first  int64
	frames []*frame.Frame
}

// RESTCodec is the name of the codec for calls from the REST API in the same
// process: it takes protobuf, into which path, query and body were put together,
// and answers in the JSON that the client gets.
const RESTCodec = "vnd.parley.rest"

// codecs are connect's two, which know how to put a batch together.
//
// Connect recycles the slices that Marshal returns, so a shared slice must never
// get there: both functions append copies to a slice that is connect's own.
func codecs() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCodec(restCodec{jsonCodec{RESTCodec}}),
	}
}

type binaryCodec struct{}

func (binaryCodec) Name() string   { return "proto" }
func (binaryCodec) IsBinary() bool { return true }

func (c binaryCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (c binaryCodec) MarshalStable(m any) ([]byte, error) {
	pb, err := message(m)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(pb)
}

func (binaryCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	b, ok := m.(*batch)
	if !ok {
		pb, err := message(m)
		if err != nil {
			return nil, err
		}
		return proto.MarshalOptions{}.MarshalAppend(dst, pb)
	}
	dst = protowire.AppendTag(dst, 1, protowire.VarintType) // first_position
	dst = protowire.AppendVarint(dst, uint64(b.first))
	for _, f := range b.frames {
		wire, err := f.Wire()
		if err != nil {
			return nil, err
		}
		dst = append(dst, wire...)
	}
	return dst, nil
}

func (binaryCodec) Unmarshal(b []byte, m any) error {
	pb, err := message(m)
	if err != nil {
		return err
	}
	return proto.Unmarshal(b, pb)
}

type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }
func (jsonCodec) IsBinary() bool { return false }

func (c jsonCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (c jsonCodec) MarshalStable(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (jsonCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	b, ok := m.(*batch)
	if !ok {
		pb, err := message(m)
		if err != nil {
			return nil, err
		}
		return protojson.MarshalOptions{}.MarshalAppend(dst, pb)
	}
	dst = append(dst, `{"firstPosition":"`...)
	dst = strconv.AppendInt(dst, b.first, 10)
	dst = append(dst, `","frames":[`...)
	for i, f := range b.frames {
		text, err := f.JSON()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, text...)
	}
	return append(dst, "]}"...), nil
}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	pb, err := message(m)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return fmt.Errorf("zero-length payload is not a valid JSON object")
	}
	// Unknown fields are skipped: an older server must accept a newer client.
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, pb)
}

// restCodec is the codec RESTCodec.
type restCodec struct{ jsonCodec }

func (restCodec) Unmarshal(b []byte, m any) error { return binaryCodec{}.Unmarshal(b, m) }

func message(m any) (proto.Message, error) {
	pb, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("api: %T is not a message", m)
	}
	return pb, nil
}
