package stream

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of the fields that are read of SubscribeResponse, Frame, and Message. Streams
// carry hundreds of thousands of frames a second, of which nothing else is needed.
const (
	responseFrames   = 2
	frameChat        = 1
	frameHello       = 4
	frameMessage     = 5
	frameReceipt     = 9
	frameHeartbeat   = 10
	frameEnd         = 12
	messageSequence  = 3
	messageContent   = 5
	clientMessageID  = 2
	requestContent   = 3
	requestChat      = 1
	markReadSequence = 2
	helloStream      = 1
	ackStream        = 1
	ackPosition      = 2
	ackReads         = 3
	responseFirst    = 1
	answerReads      = 1
	outcomeReason    = 2
)

var errFrame = errors.New("a frame that is no message of protobuf")

// Frame is what a load test reads of a frame of a stream. Its bytes are valid during the
// call that gives it.
type Frame struct {
	Chat     []byte
	Sequence int64 // of a message
	Content  []byte
	Position int64 // in the stream

	kind protowire.Number // of the body
	body []byte
}

// eachFrame calls f for each frame of an encoded SubscribeResponse.
func eachFrame(b []byte, f func(Frame)) error {
	position := int64(0)
	return eachField(b, func(num protowire.Number, value []byte, n uint64) error {
		switch num {
		case responseFirst: // stands before the frames
			position = int64(n)
		case responseFrames:
			fr, err := parseFrame(value)
			if err != nil {
				return err
			}
			fr.Position = position
			position++
			f(fr)
		}
		return nil
	})
}

func parseFrame(b []byte) (f Frame, err error) {
	err = eachField(b, func(num protowire.Number, value []byte, _ uint64) error {
		switch {
		case num == frameChat:
			f.Chat = value
		case value != nil:
			f.kind, f.body = num, value
		}
		return nil
	})
	if err != nil || f.kind != frameMessage {
		return f, err
	}
	err = eachField(f.body, func(num protowire.Number, value []byte, n uint64) error {
		switch num {
		case messageSequence:
			f.Sequence = int64(n)
		case messageContent:
			f.Content = value
		}
		return nil
	})
	return f, err
}

func streamID(hello []byte) (id string) {
	_ = eachField(hello, func(num protowire.Number, value []byte, _ uint64) error { // broken: no id
		if num == helloStream {
			id = string(value)
		}
		return nil
	})
	return id
}

// eachField calls f for each field of a message: with its bytes, or its number and no bytes.
func eachField(b []byte, f func(num protowire.Number, value []byte, n uint64) error) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errFrame
		}
		b = b[n:]
		var value []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			if value, n = protowire.ConsumeBytes(b); value == nil {
				value = []byte{} // an empty message is one
			}
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
		if n < 0 {
			return errFrame
		}
		if err := f(num, value, number); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// AppendStamp appends a text of a size that says in which round and when it was due.
func AppendStamp(to []byte, round int64, due time.Duration, size int) []byte {
	begin := len(to)
	to = strconv.AppendInt(to, round, 10)
	to = append(to, ' ')
	to = strconv.AppendInt(to, int64(due), 10)
	to = append(to, ' ')
	for len(to)-begin < size {
		to = append(to, 'x')
	}
	return to
}

// ParseStamp is the opposite of AppendStamp.
func ParseStamp(text []byte) (round int64, due time.Duration, ok bool) {
	first, rest, ok1 := bytes.Cut(text, []byte(" "))
	second, _, ok2 := bytes.Cut(rest, []byte(" "))
	round, ok3 := number(first)
	ns, ok4 := number(second)
	return round, time.Duration(ns), ok1 && ok2 && ok3 && ok4
}

func number(text []byte) (n int64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<58 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(text) > 0
}

// SendRequest is an encoded SendMessageRequest; clientID may be "".
func SendRequest(chat, clientID string, text []byte) []byte {
	b := make([]byte, 0, len(chat)+len(clientID)+len(text)+16)
	b = appendString(b, requestChat, chat)
	if clientID != "" {
		b = appendString(b, clientMessageID, clientID)
	}
	b = protowire.AppendTag(b, requestContent, protowire.BytesType)
	return protowire.AppendBytes(b, text)
}

// MarkRequest is an encoded MarkReadRequest.
func MarkRequest(chat string, sequence int64) []byte {
	b := appendString(nil, requestChat, chat)
	b = protowire.AppendTag(b, markReadSequence, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(sequence))
}

// AckRequest is an encoded AckRequest, with how far chats were read.
func AckRequest(streamID string, position int64, reads map[string]int64) []byte {
	b := appendString(nil, ackStream, streamID)
	b = protowire.AppendTag(b, ackPosition, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(position))
	for chat, sequence := range reads {
		b = protowire.AppendTag(b, ackReads, protowire.BytesType)
		b = protowire.AppendBytes(b, MarkRequest(chat, sequence)) // a ReadMark has the same fields
	}
	return b
}

// CheckAck returns an error unless an encoded AckResponse says of a number of read marks
// that each was recorded.
func CheckAck(b []byte, reads int) error {
	err := eachField(b, func(num protowire.Number, value []byte, _ uint64) error {
		if num != answerReads {
			return nil
		}
		reads--
		return eachField(value, func(num protowire.Number, value []byte, _ uint64) error {
			if num == outcomeReason && len(value) > 0 {
				return fmt.Errorf("a read mark was refused: %.64s", value)
			}
			return nil
		})
	})
	if err == nil && reads != 0 {
		err = errors.New("the server takes no read marks with acknowledgements: try --mark-every=0")
	}
	return err
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}
