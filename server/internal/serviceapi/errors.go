package serviceapi

import (
	"errors"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/rpc"
)

var (
	errUser = errors.New("the service account may not speak for this user: that needs a scope users:BEGINNING " +
		"of the id, and an active user")
	errSession = errors.New("the session is none of the service account's")
)

// Refusals is the service's table of errors.
var Refusals = rpc.Refusals{
	{Is: errUser, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN", Text: errUser.Error()},
	{Is: errSession, Code: connect.CodePermissionDenied, Reason: "FORBIDDEN", Text: errSession.Error()},
}
