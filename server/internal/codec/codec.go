// Package codec writes what the RPCs answer: protobuf, JSON as people read it, and
// server-sent events. Frames of streams are encoded once for all that get them; a
// response is put together from them here.
//
// It owns the formats and the meaning of the id of an event ([Cursor]); it does not own
// frames (package frame) nor their recipients (package delivery).
//
// # Concurrency
//
// Codecs are stateless; a Cursor belongs to one stream.
package codec

import (
	"fmt"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/internal/jsonbody"
)

// Batch is a SubscribeResponse whose frames are encoded already, and shared with
// other streams.
type Batch struct {
	First  int64 // position of the first frame
	Frames []*frame.Frame
	Commit int64   // the newest that the frames may show
	Cursor *Cursor // of a stream of events; nil for others
}

// Encoded is a message of a stream that is encoded already, or in part: the bytes are
// shared with other streams.
type Encoded interface {
	// AppendWire appends the message in protobuf, AppendJSON in JSON.
	AppendWire(dst []byte) ([]byte, error)
	AppendJSON(dst []byte) ([]byte, error)
}

var _ Encoded = (*Batch)(nil)

// AppendWire implements Encoded.
func (b *Batch) AppendWire(dst []byte) ([]byte, error) {
	dst = protowire.AppendTag(dst, 1, protowire.VarintType) // first_position
	dst = protowire.AppendVarint(dst, uint64(b.First))
	for _, f := range b.Frames {
		wire, err := f.Wire()
		if err != nil {
			return nil, err
		}
		dst = append(dst, wire...)
	}
	dst = protowire.AppendTag(dst, 3, protowire.VarintType) // commit
	return protowire.AppendVarint(dst, uint64(b.Commit)), nil
}

// AppendJSON implements Encoded.
func (b *Batch) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"firstPosition":"`...)
	dst = strconv.AppendInt(dst, b.First, 10)
	dst = append(dst, `","frames":[`...)
	for i, f := range b.Frames {
		text, err := f.JSON()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, text...)
	}
	dst = append(dst, `],"commit":"`...)
	dst = strconv.AppendInt(dst, b.Commit, 10)
	return append(dst, `"}`...), nil
}

// REST is the name of the codec for calls from the REST API in the same
// process: it takes protobuf, into which path, query and body were put together,
// and answers in the JSON that the client gets.
const REST = "vnd.parley.rest"

// Options are connect's two codecs, which know how to put a batch together, and those
// of the REST API.
//
// Connect recycles the slices that Marshal returns, so a shared slice must never
// get there: both functions append copies to a slice that is connect's own.
func Options() []connect.HandlerOption {
	return []connect.HandlerOption{
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithCodec(restCodec{jsonCodec{REST}}),
		connect.WithCodec(eventCodec{jsonCodec{Events}}),
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
	if e, ok := m.(Encoded); ok {
		return e.AppendWire(dst)
	}
	pb, err := message(m)
	if err != nil {
		return nil, err
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, pb)
}

func (binaryCodec) Unmarshal(b []byte, m any) error {
	pb, err := message(m)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(b, pb); err != nil {
		return err
	}
	return jsonbody.CheckKnown(pb)
}

type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }
func (jsonCodec) IsBinary() bool { return false }

func (c jsonCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (c jsonCodec) MarshalStable(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (jsonCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	if e, ok := m.(Encoded); ok {
		dst, err := e.AppendJSON(dst)
		return append(dst, '\n'), err
	}
	pb, err := message(m)
	if err != nil {
		return nil, err
	}
	dst, err = JSON.MarshalAppend(dst, pb)
	return append(dst, '\n'), err
}

// JSON is how messages are written as JSON. Zeros are shown: a person who reads JSON, or a
// client in a language without contracts, would miss them. Unset fields are left out where
// their absence has a meaning.
var JSON = protojson.MarshalOptions{EmitDefaultValues: true}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	pb, err := message(m)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return fmt.Errorf("zero-length payload is not a valid JSON object")
	}
	return jsonbody.Unmarshal(b, pb)
}

// restCodec is the codec REST.
type restCodec struct{ jsonCodec }

func (restCodec) Unmarshal(b []byte, m any) error { return binaryCodec{}.Unmarshal(b, m) }

func message(m any) (proto.Message, error) {
	pb, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("codec: %T is not a message", m)
	}
	return pb, nil
}
