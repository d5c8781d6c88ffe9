package delivery

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/delivery/watermark"
)

// delivered records how far messages reached a device of a user.
func (h *Hub) delivered(user string, sequences map[string]int64, now time.Time) {
	h.mu.Lock()
	defer h.unlock()
	for chatID, seq := range sequences {
		if h.watermarks.Raise(watermark.Key{User: user, Chat: chatID}, seq) {
			h.schedule(now, Work{kind: workWatermark, user: user, chatID: chatID})
		}
	}
}

// flushWatermark writes how far messages of a chat reached a user, if that is further
// than what was written.
func (h *Hub) flushWatermark(ctx context.Context, w Work) error {
	key := watermark.Key{User: w.user, Chat: w.chatID}
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
