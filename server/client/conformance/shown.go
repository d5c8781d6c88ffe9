package conformance

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// shown is a chat as it is shown: fields, and messages by sequence.
type shown struct {
	fields   map[string]json.RawMessage
	messages map[int64]json.RawMessage
}

func newShown() *shown {
	return &shown{map[string]json.RawMessage{}, map[int64]json.RawMessage{}}
}

// eyes look at a machine, and remember what they have seen: the values that a machine shows
// are never changed, only replaced.
type eyes map[proto.Message]json.RawMessage

func (e eyes) encode(p proto.Message) json.RawMessage {
	raw, ok := e[p]
	if !ok {
		raw = encode(p)
		e[p] = raw
	}
	return raw
}

// listed shows the chats that a machine lists.
func (e eyes) listed(m *device.Machine) map[string]*shown {
	now := map[string]*shown{}
	for _, id := range m.Chats() {
		now[id] = e.show(m, id)
	}
	return now
}

func (e eyes) show(m *device.Machine, chatID string) *shown {
	v, _ := m.View(chatID)
	s := newShown()
	object := func(name string, p proto.Message, set bool) {
		if set {
			s.fields[name] = e.encode(p)
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			s.fields[name] = json.RawMessage(strconv.Quote(strconv.FormatInt(n, 10)))
		}
	}
	flag := func(name string, on bool) {
		if on {
			s.fields[name] = json.RawMessage("true")
		}
	}
	object("chat", v.Chat, v.Chat != nil)
	object("head", v.Head, v.Head != nil)
	object("state", v.State, v.State != nil)
	number("unread", v.Unread)
	number("peerRead", v.PeerRead)
	flag("open", v.Open)
	flag("loaded", v.Loaded)
	number("version", v.Version)
	number("first", v.First)
	flag("hasOlder", v.HasOlder)
	if v.MembersLoaded {
		list := []json.RawMessage{}
		for _, p := range v.Present {
			list = append(list, encode(&chatv1.Member{UserId: p.UserID, Role: p.Role, JoinedAt: p.JoinedAt, Version: p.Version}))
		}
		s.fields["members"] = jsonOf(list)
	}
	for _, msg := range v.Messages {
		s.messages[msg.GetSequence()] = e.encode(msg)
	}
	return s
}

// jsonOf is a list in JSON.
func jsonOf(list []json.RawMessage) json.RawMessage {
	return slices.Concat([]byte("["), bytes.Join(rawBytes(list), []byte(",")), []byte("]"))
}

func rawBytes(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, r := range list {
		out[i] = r
	}
	return out
}

// patch is what changed from one snapshot of a chat to the next; empty if nothing did, null
// if the chat is not known any more.
func patch(old, now *shown) (p Patch, changed bool) {
	switch {
	case now == nil:
		return nil, old != nil
	case old == nil:
		old = newShown()
		changed = true
	}
	p = Patch{}
	for name, v := range now.fields {
		if !bytes.Equal(old.fields[name], v) {
			p[name] = v
		}
	}
	for name := range old.fields {
		if now.fields[name] == nil {
			p[name] = json.RawMessage("null")
		}
	}
	before := old.messages
	for seq := range before {
		if now.messages[seq] == nil {
			p["cleared"], before = json.RawMessage("true"), nil
			break
		}
	}
	var list []json.RawMessage
	for _, seq := range slices.Sorted(maps.Keys(now.messages)) {
		if !bytes.Equal(before[seq], now.messages[seq]) {
			list = append(list, now.messages[seq])
		}
	}
	if list != nil {
		p["messages"] = jsonOf(list)
	}
	return p, changed || len(p) > 0
}
