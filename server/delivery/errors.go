package delivery

import (
	"errors"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
)

// Errors of streams.
var (
	// ErrStreamGone says that the stream is not open, or is not one of this user.
	ErrStreamGone = errors.New("delivery: no such stream")
	// ErrPosition says that a position beyond the last sent was acknowledged.
	ErrPosition = errors.New("delivery: position was never sent")
	// ErrNotYours says that a token of another session of the user was to extend a stream.
	ErrNotYours = errors.New("delivery: another session")
)

// Reasons why a stream ended, by the code of its end frame.
var (
	ErrDraining       = errors.New("delivery: server is shutting down")
	ErrSlow           = errors.New("delivery: stream was too slow")
	ErrResync         = errors.New("delivery: stream must be reopened")
	ErrTokenExpired   = errors.New("delivery: access token expired")
	ErrSessionRevoked = errors.New("delivery: session was ended")
	ErrReplaced       = errors.New("delivery: a newer stream replaced this one")
)

// reasons are the errors that end codes stand for.
var reasons = map[deliveryv1.EndCode]error{
	deliveryv1.EndCode_END_CODE_DRAIN:           ErrDraining,
	deliveryv1.EndCode_END_CODE_SLOW:            ErrSlow,
	deliveryv1.EndCode_END_CODE_RESYNC:          ErrResync,
	deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED:   ErrTokenExpired,
	deliveryv1.EndCode_END_CODE_SESSION_REVOKED: ErrSessionRevoked,
	deliveryv1.EndCode_END_CODE_REPLACED:        ErrReplaced,
}

// EndError returns the reason for an end frame's code; nil for no end.
func EndError(code deliveryv1.EndCode) error { return reasons[code] }
