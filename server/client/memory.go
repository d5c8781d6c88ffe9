package client

import (
	"maps"
	"slices"
	"sync"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// Memory is a device.Storage that lasts as long as the process. Its zero value is
// empty. It is safe for use by many goroutines.
type Memory struct {
	mu       sync.Mutex
	snapshot device.Snapshot
}

var _ device.Storage = (*Memory)(nil)

// Load implements device.Storage.
func (s *Memory) Load() (*device.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &device.Snapshot{
		Session:  s.snapshot.Session,
		Chats:    maps.Clone(s.snapshot.Chats),
		Messages: make(map[string]map[int64]*messagev1.Message, len(s.snapshot.Messages)),
		Outbox:   slices.Clone(s.snapshot.Outbox),
	}
	for id, byID := range s.snapshot.Messages {
		out.Messages[id] = maps.Clone(byID)
	}
	return out, nil
}

// Store implements device.Storage.
func (s *Memory) Store(b *device.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.snapshot
	if k.Chats == nil {
		k.Chats, k.Messages = map[string]device.Record{}, map[string]map[int64]*messagev1.Message{}
	}
	for _, id := range b.Removed {
		delete(k.Chats, id)
		delete(k.Messages, id)
	}
	for _, c := range b.Chats {
		id := c.Record.ChatID
		k.Chats[id] = c.Record
		if c.Clear {
			delete(k.Messages, id)
		}
		for _, msg := range c.Messages {
			if k.Messages[id] == nil {
				k.Messages[id] = map[int64]*messagev1.Message{}
			}
			k.Messages[id][msg.GetSequence()] = msg
		}
	}
	k.Outbox = append(k.Outbox, b.Outbox...)
	if len(b.Done) > 0 {
		k.Outbox = slices.DeleteFunc(k.Outbox,
			func(u device.OutboxEntry) bool { return slices.Contains(b.Done, u.ClientMessageID) })
	}
	if b.Session != nil {
		k.Session = *b.Session
	}
	return nil
}
