package link

import (
	"context"
	"hash/fnv"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/chat"
)

// While several servers write to a chat, each message of it costs plans that lose the chat's
// head. So they forward their messages to one of them, on which all agree by its id: the one
// with the highest score for the chat. That is a hint. Servers may see different others, and
// a link may be cut: then a server stores the message itself.

// forwardTime bounds the wait for the other server's answer, as Config.Call does.
const forwardTime = 2 * time.Second

// Forward stores a message, which must have its ClientMessageID, through the server that
// its chat prefers. It reports false if that is this process, or if there was no answer
// that the message is stored: it may be stored, or be stored yet.
func (m *Mesh) Forward(ctx context.Context, s chat.Send) (chat.Sent, bool) {
	p := m.preferred(s.ChatID)
	if p == nil {
		return chat.Sent{}, false
	}
	call, cancel := context.WithTimeout(ctx, min(forwardTime, m.cfg.Call))
	defer cancel()
	res, err := p.rpc.Submit(call, encodeSend(s))
	if err == nil {
		m.counters.forwarded.Add(1)
		return chat.Sent{MessageID: res.GetMessageId(), ClientMessageID: s.ClientMessageID, Sequence: res.GetSequence(),
			Version: res.GetVersion(), CreatedAt: res.GetCreatedAt(), Replayed: res.GetReplayed()}, true
	}
	switch code := connect.CodeOf(err); {
	case ctx.Err() != nil: // the sender has left
	case code == connect.CodeFailedPrecondition, code == connect.CodeInvalidArgument: // the server did answer
	default:
		m.counters.failed.Add(1)
		p.mu.Lock()
		p.avoid = m.cfg.Clock().Add(m.cfg.Avoid)
		p.mu.Unlock()
	}
	return chat.Sent{}, false
}

// preferred returns the link to the server that a chat prefers, nil if that is this process.
func (m *Mesh) preferred(chatID string) (best *peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	highest, now := score(m.cfg.Process, chatID), m.cfg.Clock()
	for id, p := range m.peers {
		if n := score(id, chatID); n > highest && p.accepts(now) {
			best, highest = p, n
		}
	}
	return best
}

// accepts reports whether the server has answered lately.
func (p *peer) accepts(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connected() && now.Sub(p.seen) < 2*p.mesh.cfg.Keepalive && !now.Before(p.avoid)
}

// score is how much a chat prefers a server: the same in every process, and for each
// chat another order of the servers.
func score(server, chatID string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(server))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(chatID))
	n := h.Sum64() // whose upper bits the last bytes hardly reach
	n = (n ^ n>>32) * 0xd6e8feb86659fd93
	return n ^ n>>32
}
