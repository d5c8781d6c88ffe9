package routing

import (
	"context"
	"time"
)

// seenFor is how long Redis keeps what SetSeen wrote.
const seenFor = 30 * 24 * time.Hour

func (r *Redis) seenKey() string { return r.prefix + "seen" }

// Seen returns what SetSeen wrote last: how far processes have seen the store's history. It is empty
// if Redis does not have it any more.
func (r *Redis) Seen(ctx context.Context) (string, error) {
	text, err := r.c.Get(ctx, r.seenKey()).Result()
	if absent(err) {
		return "", nil
	}
	return text, translate(err)
}

// SetSeen keeps how far the store's history was seen.
func (r *Redis) SetSeen(ctx context.Context, text string) error {
	return translate(r.c.Set(ctx, r.seenKey(), text, seenFor).Err())
}
