package delivery

import (
	"context"
	"time"
)

// delivered records how far messages reached a device of a user.
func (h *Hub) delivered(user string, sequences map[string]int64, now time.Time) {
	h.mu.Lock()
	defer h.unlock()
	for chatID, seq := range sequences {
		if h.watermarks.Raise(watermarkKey{User: user, Chat: chatID}, seq) {
			h.schedule(now, Work{kind: workWatermark, user: user, chatID: chatID})
		}
	}
}

// flushWatermark writes how far messages of a chat reached a user, if that is further
// than what was written.
func (h *Hub) flushWatermark(ctx context.Context, w Work) error {
	key := watermarkKey{User: w.user, Chat: w.chatID}
	h.mu.Lock()
	seq, ok := h.watermarks.Next(key)
	h.unlock()
	if !ok {
		return nil
	}
	err := h.cfg.Delivered(ctx, w.user, w.chatID, seq)

	h.mu.Lock()
	defer h.unlock()
	if err == nil {
		h.watermarks.Written(key, seq)
	}
	h.schedule(h.cfg.Clock().Add(h.cfg.WatermarkEvery), w)
	return err
}

// watermarkKey is a user in a chat.
type watermarkKey struct{ User, Chat string }

type watermarkProgress struct{ sequence, written int64 }

// watermarkSet holds the watermarks that were written lately or are to be: how far messages have reached the
// devices of users. A watermark is written seldom. Its owner guards it.
type watermarkSet map[watermarkKey]*watermarkProgress

// Raise records that a sequence was reached. It reports whether the key is new: its
// owner then has to call Next for it.
func (s watermarkSet) Raise(k watermarkKey, sequence int64) (isNew bool) {
	m := s[k]
	if m == nil {
		m = &watermarkProgress{}
		s[k], isNew = m, true
	}
	m.sequence = max(m.sequence, sequence)
	return isNew
}

// Next returns the sequence to write. Without any, ok is false and the key is
// dropped.
func (s watermarkSet) Next(k watermarkKey) (sequence int64, ok bool) {
	m := s[k]
	if m == nil || m.sequence <= m.written {
		delete(s, k)
		return 0, false
	}
	return m.sequence, true
}

// Written records that a sequence returned by Next was written.
func (s watermarkSet) Written(k watermarkKey, sequence int64) {
	if m := s[k]; m != nil {
		m.written = max(m.written, sequence)
	}
}
