package codec

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store"
)

// Events is the name of the codec for streams of the REST API: it takes
// protobuf and answers in server-sent events: one for each frame of a chat, of which the last of a
// response has an id, with which another stream continues after it; one for each response of others.
const Events = "vnd.parley.events"

// Waits before a reconnection, as clients of server-sent events take them.
const (
	retryAfter = time.Second
	pollAfter  = 5 * time.Second     // where a stream only catches up
	retryNever = 24 * 24 * time.Hour // about the most that a browser can wait
)

// eventCodec is the codec Events.
type eventCodec struct{ jsonCodec }

func (eventCodec) Unmarshal(b []byte, m any) error { return binaryCodec{}.Unmarshal(b, m) }

func (c eventCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

func (c eventCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	b, ok := m.(*Batch)
	if !ok || b.Cursor == nil { // of a consumer of a topic: its cursor is kept by what it acknowledges
		dst, err := c.jsonCodec.MarshalAppend(append(dst, "data: "...), m)
		return append(dst, '\n'), err
	}
	if b.First == 1 {
		dst = appendRetry(dst, b.Cursor.retry)
	}
	for i, f := range b.Frames {
		text, err := f.JSON()
		if err != nil {
			return nil, err
		}
		if end := f.Proto().GetEnd(); end != nil {
			dst = appendRetry(dst, retryOf(end))
		}
		b.Cursor.pass(f, b.Commit)
		if i == len(b.Frames)-1 {
			dst = append(append(append(dst, "id: "...), b.Cursor.id()...), '\n')
		}
		dst = append(append(append(dst, "data: "...), text...), "\n\n"...)
	}
	return dst, nil
}

func appendRetry(dst []byte, after time.Duration) []byte {
	return append(strconv.AppendInt(append(dst, "retry: "...), after.Milliseconds(), 10), '\n')
}

// retryOf is when a client should come again by itself: not where it would only
// push out another stream, or be refused.
func retryOf(end *deliveryv1.End) time.Duration {
	switch end.GetCode() {
	case deliveryv1.EndCode_END_CODE_REPLACED, deliveryv1.EndCode_END_CODE_SESSION_REVOKED:
		return retryNever
	}
	return retryAfter + end.GetReconnectAfter().AsDuration()
}

// ErrCursor says that an id was not made here.
var ErrCursor = errors.New("codec: not the id of an event")

// maxKnownChats is how many chats a request may name as known.
const maxKnownChats = 100

// Cursor is how far a stream of events has come: what a client that resumes says it
// has. It knows the chats that changed last; for others a resumed stream says that
// they have changed, and not what. It is used by one goroutine.
type Cursor struct {
	user     string
	retry    time.Duration // after which a client comes again
	history  store.History
	commit   int64 // the newest that was shown, in the present generation
	token    string
	versions map[string]int64
	order    []string // chats, the one that changed last at the end
}

// NewCursor is where a stream begins: with nothing, with a token of Sync, or behind
// an event. It fills the request accordingly. Errors: ErrCursor.
//
// A stream that follows on an event or token outside of the history begins with nothing.
func NewCursor(
	user string, history store.History, after string, req *deliveryv1.SubscribeRequest,
) (*Cursor, error) {
	p := &Cursor{user: user, retry: retryAfter, history: history, commit: history.Shown(), versions: map[string]int64{}}
	if req.GetCatchUpOnly() {
		p.retry = pollAfter
	}
	token, known, resumes := strings.Cut(after, ".")
	p.token, req.Token = token, token
	if !resumes {
		return p, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(known)
	if err != nil {
		return nil, ErrCursor
	}
	held, ok := p.decode(b)
	if !ok {
		return nil, ErrCursor
	}
	if !held {
		p.token, req.Token = "", ""
	}
	for _, id := range p.order {
		req.KnownChats = append(req.KnownChats, &deliveryv1.KnownChat{ChatId: id, Version: p.versions[id]})
	}
	return p, nil
}

// cursorUnnumbered is the version of cursors without a commit, of earlier releases.
const (
	cursorVersion    = 2
	cursorUnnumbered = 1
)

// decode reads what id wrote. held says that what the client was shown is part of the history; if
// it is not, nothing is known: versions are others there.
func (p *Cursor) decode(b []byte) (held, ok bool) {
	if len(b) < 2 || b[0] != cursorVersion && b[0] != cursorUnnumbered || len(b) < 2+int(b[1]) {
		return false, false
	}
	version, generation := b[0], string(b[2:2+b[1]])
	b = b[2+b[1]:]
	commit := uint64(0)
	if version == cursorVersion {
		if commit, b, ok = cutUvarint(b); !ok {
			return false, false
		}
	}
	held = p.history.Holds(generation, int64(commit))
	for len(b) > 0 {
		var id ulid.ULID
		if len(b) < len(id)+1 || len(p.order) == maxKnownChats {
			return false, false
		}
		copy(id[:], b)
		var version uint64
		if version, b, ok = cutUvarint(b[len(id):]); !ok {
			return false, false
		}
		if chat := chatPrefix + id.String(); held {
			if _, twice := p.versions[chat]; twice {
				return false, false
			}
			p.set(chat, int64(version))
		}
	}
	return held, true
}

func cutUvarint(b []byte) (n uint64, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > 1<<62 {
		return 0, nil, false
	}
	return n, b[size:], true
}

const chatPrefix = "chat_"

// id is the cursor as the id of an event.
func (p *Cursor) id() string {
	generation := p.history.Generation()
	b := append([]byte{cursorVersion, byte(len(generation))}, generation...)
	b = binary.AppendUvarint(b, uint64(p.commit))
	for _, chat := range p.order {
		if id, err := ulid.ParseStrict(strings.TrimPrefix(chat, chatPrefix)); err == nil { // all ids of chats are
			b = binary.AppendUvarint(append(b, id[:]...), uint64(p.versions[chat]))
		}
	}
	return p.token + "." + base64.RawURLEncoding.EncodeToString(b)
}

// pass records a frame that was sent, which shows no newer commit than one.
func (p *Cursor) pass(f *frame.Frame, commit int64) {
	p.commit = max(p.commit, commit)
	pb := f.Proto()
	chat := pb.GetChatId()
	switch body := pb.GetBody().(type) {
	case *deliveryv1.Frame_Heartbeat:
		p.resumeFrom(body.Heartbeat.GetToken())
	case *deliveryv1.Frame_End:
		p.resumeFrom(body.End.GetToken())
	case *deliveryv1.Frame_Reset_:
		if chat == "" {
			p.token, p.versions, p.order = "", map[string]int64{}, nil
			return
		}
		p.set(chat, body.Reset_.GetVersion())
	case *deliveryv1.Frame_Head:
		// A chat that is known is brought up to date by its changes, which may come
		// after its head. Heads come with the one that changed last first.
		if _, known := p.versions[chat]; !known && len(p.order) < maxKnownChats {
			p.versions[chat] = body.Head.GetVersion()
			p.order = slices.Insert(p.order, 0, chat)
		}
	case *deliveryv1.Frame_MembershipChange:
		if m := body.MembershipChange; m.GetUserId() == p.user && m.GetKind() == messagev1.MembershipChange_KIND_REMOVED {
			p.forget(chat)
			return
		}
		p.set(chat, max(pb.GetVersion(), p.versions[chat]))
	default:
		if pb.GetVersion() != 0 {
			p.set(chat, max(pb.GetVersion(), p.versions[chat]))
		}
	}
}

func (p *Cursor) resumeFrom(token string) {
	if token != "" {
		p.token = token
	}
}

// set makes a chat the one that changed last.
func (p *Cursor) set(chat string, version int64) {
	p.forget(chat)
	if len(p.order) == maxKnownChats {
		p.forget(p.order[0])
	}
	p.versions[chat] = version
	p.order = append(p.order, chat)
}

func (p *Cursor) forget(chat string) {
	if _, known := p.versions[chat]; known {
		delete(p.versions, chat)
		p.order = slices.Delete(p.order, slices.Index(p.order, chat), slices.Index(p.order, chat)+1)
	}
}
