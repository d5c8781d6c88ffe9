package topicrpc

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/internal/codec"
	"github.com/parley-chat/parley/server/topic"
)

// maxFrame bounds the messages of a delivery in bytes, unless a single one is larger:
// clients of gRPC take 4 MB.
const maxFrame = 1 << 20

// Numbers of fields: of ConsumeResponse and ConsumeBidiResponse, and of Delivery.
const (
	fieldDelivery = 2
	fieldCommit   = 8

	fieldPartition = 1
	fieldBase      = 2
	fieldMessages  = 3
	fieldOffsets   = 4
	fieldAttempts  = 5
	fieldMoves     = 6
)

// deliveryFrame is a response with a delivery. Its messages are encoded already, the same
// bytes for all groups and streams.
type deliveryFrame struct {
	topic.Delivery
	commit int64 // of the response
}

var _ codec.Encoded = (*deliveryFrame)(nil)

// AppendWire implements codec.Encoded.
func (f *deliveryFrame) AppendWire(dst []byte) ([]byte, error) {
	dst = protowire.AppendTag(dst, fieldDelivery, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(f.size()))
	dst = f.appendDelivery(dst)
	if f.commit != 0 {
		dst = protowire.AppendTag(dst, fieldCommit, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(f.commit))
	}
	return dst, nil
}

// appendDelivery appends the message Delivery.
func (f *deliveryFrame) appendDelivery(dst []byte) []byte {
	if f.Partition != 0 {
		dst = protowire.AppendTag(dst, fieldPartition, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(f.Partition))
	}
	if f.Base != 0 {
		dst = protowire.AppendTag(dst, fieldBase, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(f.Base))
	}
	for _, p := range f.Pieces {
		dst = append(dst, p...)
	}
	dst = appendPacked(dst, fieldOffsets, f.Offsets)
	dst = appendPacked(dst, fieldAttempts, f.Attempts)
	if f.Moves != 0 {
		dst = protowire.AppendTag(dst, fieldMoves, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(f.Moves))
	}
	return dst
}

// size is the length of the message Delivery.
func (f *deliveryFrame) size() int {
	n := 0
	if f.Partition != 0 {
		n += protowire.SizeTag(fieldPartition) + protowire.SizeVarint(uint64(f.Partition))
	}
	if f.Base != 0 {
		n += protowire.SizeTag(fieldBase) + protowire.SizeVarint(uint64(f.Base))
	}
	if f.Moves != 0 {
		n += protowire.SizeTag(fieldMoves) + protowire.SizeVarint(uint64(f.Moves))
	}
	return n + f.bytes() + sizePacked(fieldOffsets, f.Offsets) + sizePacked(fieldAttempts, f.Attempts)
}

// bytes is the length of the messages.
func (f *deliveryFrame) bytes() int {
	n := 0
	for _, p := range f.Pieces {
		n += len(p)
	}
	return n
}

func sizeValues(values []uint32) int {
	n := 0
	for _, v := range values {
		n += protowire.SizeVarint(uint64(v))
	}
	return n
}

func sizePacked(field protowire.Number, values []uint32) int {
	if len(values) == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(sizeValues(values))
}

func appendPacked(dst []byte, field protowire.Number, values []uint32) []byte {
	if len(values) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(sizeValues(values)))
	for _, v := range values {
		dst = protowire.AppendVarint(dst, uint64(v))
	}
	return dst
}

// AppendJSON implements codec.Encoded.
func (f *deliveryFrame) AppendJSON(dst []byte) ([]byte, error) {
	d, err := f.message()
	if err != nil {
		return nil, err
	}
	dst = append(dst, `{"delivery":`...)
	if dst, err = codec.JSON.MarshalAppend(dst, d); err != nil {
		return nil, err
	}
	if f.commit != 0 {
		dst = append(strconv.AppendInt(append(dst, `,"commit":"`...), f.commit, 10), '"')
	}
	return append(dst, '}'), nil
}

// message is the delivery as a message.
func (f *deliveryFrame) message() (*topicv1.Delivery, error) {
	d := &topicv1.Delivery{}
	if err := proto.Unmarshal(f.appendDelivery(nil), d); err != nil {
		return nil, fmt.Errorf("topicrpc: stored messages of partition %d from %d: %w", f.Partition, f.Base, err)
	}
	return d, nil
}

// frames makes the responses of a delivery: one, or several if it is large.
func frames(d topic.Delivery) ([]*deliveryFrame, error) {
	f := &deliveryFrame{Delivery: d}
	if f.bytes() <= maxFrame {
		return []*deliveryFrame{f}, nil
	}
	var all []*deliveryFrame
	part := &deliveryFrame{Delivery: topic.Delivery{Partition: d.Partition, Moves: d.Moves}}
	size, first := 0, 0 // of the part
	end := func(next int) {
		part.Count, part.Base = next-first, d.Base+int64(first)
		if d.Offsets != nil {
			part.Base = d.Base + int64(d.Offsets[first])
			for _, o := range d.Offsets[first:next] {
				part.Offsets = append(part.Offsets, o-d.Offsets[first])
			}
		}
		if d.Attempts != nil {
			part.Attempts = d.Attempts[first:next]
		}
		all = append(all, part)
		part, size, first = &deliveryFrame{Delivery: topic.Delivery{Partition: d.Partition, Moves: d.Moves}}, 0, next
	}
	next := 0
	for _, piece := range d.Pieces {
		begin := 0
		for at := 0; at < len(piece); next++ {
			_, _, n := protowire.ConsumeField(piece[at:])
			if n < 0 {
				return nil, fmt.Errorf("topicrpc: stored messages of partition %d from %d: %w", d.Partition, d.Base,
					protowire.ParseError(n))
			}
			if size > 0 && size+n > maxFrame {
				if begin < at {
					part.Pieces = append(part.Pieces, piece[begin:at])
				}
				end(next)
				begin = at
			}
			at, size = at+n, size+n
		}
		if begin < len(piece) {
			part.Pieces = append(part.Pieces, piece[begin:])
		}
	}
	end(next)
	return all, nil
}
