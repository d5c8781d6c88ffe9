package blackbox

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/device"
)

// Mistakes that an adapter makes on purpose.
const (
	dropsMessage     = "drops a message"
	readsOnSend      = "marks as read on send"
	sendsTwice       = "sends twice under other ids"
	showsOutOfOrder  = "shows out of order"
	ignoresRemoval   = "ignores removal"
	countsOwn        = "counts own messages as unread"
	forgetsOutbox    = "forgets the outbox"
	hidesRefusal     = "hides a refusal"
	ignoresReadMarks = "ignores read marks"
)

// adapter speaks the protocol for a client of package client.
type adapter struct {
	mistake string
	out     *json.Encoder
	client  *client.Client
	tokens  chan string
	user    string

	writing sync.Mutex
	mu      sync.Mutex
	live    bool
	refused []ShownRefused
	known   map[string]ShownChat // chats that were shown
}

// adapt speaks the protocol until its input ends or it is asked to stop.
func adapt(in io.Reader, out io.Writer, mistake string) error {
	a := &adapter{mistake: mistake, out: json.NewEncoder(out), tokens: make(chan string, 1), known: map[string]ShownChat{}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a.say(map[string]any{"can": []string{abilityKeep, abilityOlder}})
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		switch c.Do {
		case "start":
			if err := a.start(ctx, c); err != nil {
				return err
			}
		case "token":
			a.tokens <- c.Token
		case "open":
			a.client.Open(c.Chat)
		case "older":
			a.client.LoadOlder(c.Chat)
		case "read":
			if a.mistake != ignoresReadMarks {
				a.client.MarkRead(c.Chat, c.Sequence)
			}
		case "send":
			a.send(c)
		case "show":
			a.say(map[string]any{"shown": a.show()})
		case "stop":
			return nil
		}
	}
	return lines.Err()
}

func (a *adapter) say(v any) {
	a.writing.Lock()
	defer a.writing.Unlock()
	_ = a.out.Encode(v)
}

func (a *adapter) start(ctx context.Context, c command) error {
	a.user = c.User
	first := c.Token
	var err error
	a.client, err = client.Dial(client.Config{
		BaseURL: c.URL, UserID: c.User, OnEvent: a.event,
		Storage: &fileStorage{path: filepath.Join(c.Directory, "batches"), stored: a.stored,
			forget: a.mistake == forgetsOutbox},
		Token: func(ctx context.Context, renew bool) (string, error) {
			if !renew {
				return first, nil
			}
			a.say(map[string]any{"want": "token"})
			select {
			case token := <-a.tokens:
				return token, nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		},
	})
	if err != nil {
		return err
	}
	go func() { _ = a.client.Run(ctx) }()
	return nil
}

func (a *adapter) event(e device.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live = a.live || e.Connected
	if f := e.SendFailed; f != nil && a.mistake != hidesRefusal {
		a.refused = append(a.refused, ShownRefused{f.Entry.Content, cmp.Or(f.Why.Reason, f.Why.Code.String())})
	}
}

// stored says which messages are on the disk.
func (a *adapter) stored(b *device.Batch) {
	for _, m := range b.Outbox {
		a.say(map[string]any{"sent": m.Content})
	}
}

func (a *adapter) send(c command) {
	a.client.Send(c.Chat, c.Text)
	if a.mistake == sendsTwice {
		a.client.Send(c.Chat, c.Text)
	}
	if v, ok := a.client.View(c.Chat); ok && a.mistake == readsOnSend {
		a.client.MarkRead(c.Chat, max(v.Head.GetSequence(), 1)+100)
	}
}

func (a *adapter) show() Shown {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Shown{Connection: "connecting", Refused: a.refused}
	if a.live {
		s.Connection = "live"
	}
	for _, u := range a.client.Outbox() {
		s.Outbox = append(s.Outbox, u.Content)
	}
	seen := map[string]bool{}
	for _, id := range a.client.List() {
		if v, ok := a.client.View(id); ok {
			c := a.shownChat(v)
			s.Chats, a.known[id], seen[id] = append(s.Chats, c), c, true
		}
	}
	for id, c := range a.known {
		if !seen[id] && a.mistake == ignoresRemoval {
			s.Chats = append(s.Chats, c)
		}
	}
	return s
}

func (a *adapter) shownChat(v device.View) ShownChat {
	c := ShownChat{Chat: v.ChatID, Title: v.Chat.GetName(), Unread: v.Unread, Read: v.State.GetReadSequence(),
		PeerRead: v.PeerRead, Head: v.Head.GetSequence()}
	if a.mistake == countsOwn {
		c.Unread = c.Head - c.Read
	}
	for _, m := range v.Present {
		role := strings.ToLower(strings.TrimPrefix(m.Role.String(), "MEMBER_ROLE_"))
		c.Members = append(c.Members, ShownMember{m.UserID, role})
	}
	for _, m := range v.Messages {
		c.Messages = append(c.Messages, ShownMessage{m.GetSequence(), m.GetSenderId(), m.GetContent()})
	}
	if n := len(c.Messages); n > 2 && a.mistake == dropsMessage {
		c.Messages = slices.Delete(c.Messages, n-2, n-1)
	}
	if n := len(c.Messages); n > 2 && a.mistake == showsOutOfOrder {
		c.Messages[n-1], c.Messages[n-2] = c.Messages[n-2], c.Messages[n-1]
	}
	return c
}

// fileStorage keeps batches in a file, one a line. A process that is killed leaves complete lines, and at most one
// part of a line at the end.
type fileStorage struct {
	path   string
	stored func(*device.Batch)
	forget bool // the outbox
}

// storedBatch is a batch as JSON. Generated messages without oneof fields are plain structs.
type storedBatch struct {
	Session *device.Session
	Removed []string
	Chats   []storedChat
	Outbox  []device.OutboxEntry
	Done    []string
}

type storedChat struct {
	Record   device.Record
	Clear    bool
	Messages []*messagev1.Message
}

var _ device.Storage = (*fileStorage)(nil)

// Load plays the batches again.
func (f *fileStorage) Load() (*device.Snapshot, error) {
	file, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return new(client.Memory).Load()
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var memory client.Memory
	for decoder := json.NewDecoder(file); ; {
		var s storedBatch
		if err := decoder.Decode(&s); err != nil { // the end, or the part of a line
			return memory.Load()
		}
		b := &device.Batch{Session: s.Session, Removed: s.Removed, Outbox: s.Outbox, Done: s.Done}
		for _, c := range s.Chats {
			b.Chats = append(b.Chats, device.ChatChange(c))
		}
		if f.forget {
			b.Outbox = nil
		}
		if err := memory.Store(b); err != nil {
			return nil, err
		}
	}
}

// Store appends a batch.
func (f *fileStorage) Store(b *device.Batch) error {
	s := storedBatch{Session: b.Session, Removed: b.Removed, Outbox: b.Outbox, Done: b.Done}
	for _, c := range b.Chats {
		s.Chats = append(s.Chats, storedChat(c))
	}
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	if err = errors.Join(err, file.Close()); err == nil {
		f.stored(b)
	}
	return err
}
