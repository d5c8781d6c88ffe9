package frame

import "github.com/parley-chat/parley/server/event"

// Replay turns the events of one chat, between the version that a client has and the
// head, into frames for one user, as they were.
type Replay struct {
	ChatID string
	User   string
	// MinVisible is the version below which changes are hidden.
	MinVisible int64
	To         int64
	From       int64 // sent, or hidden and merged into what follows, up to here
	After      int64 // version that the client has after the frames so far

	out bool // the user is not a member at From
}

// Next returns the frame of the next event, nil if it is hidden. Changes between a removal
// of the user and the next addition are not for the user; the removal itself always is, so
// that the client drops what it had before.
func (r *Replay) Next(e event.Event) *Frame {
	v := e.GetMetadata().GetVersion()
	r.From = v
	target, effect := EffectOf(e)
	own := target == r.User
	switch {
	case own && effect == Removed:
		r.out = true
	case own && effect == Added:
		r.out = false
		if v < r.MinVisible {
			return nil
		}
	case r.out || v < r.MinVisible:
		return nil
	}
	f := Of(e, r.After)
	r.After = v
	return f
}
