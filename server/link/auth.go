package link

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// credentialHeader carries the credential of a request.
const credentialHeader = "Parley-Proof"

// credential proves knowledge of the secret: from, to, time, and an HMAC of them.
func credential(secret []byte, from, to string, at time.Time) string {
	text := from + " " + to + " " + strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("parley link " + text))
	return text + " " + hex.EncodeToString(mac.Sum(nil))
}

// Reasons to refuse a credential. Only a process that knows the secret receives the last
// two. The texts are compared across releases.
var (
	errCredential   = errors.New("no proof of the key that all processes share")
	errOtherProcess = errors.New("another process answers there")
	errClockSkew    = errors.New("the clocks of the two processes differ by more than a minute")
)

// isOtherKey reports whether the answer to a call is that of a process with another key.
func isOtherKey(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeUnauthenticated && ce.Message() == errCredential.Error()
}

// verifyCredential returns the sender of a credential, or why it is refused.
func verifyCredential(secret []byte, got, to string, now time.Time) (from string, err error) {
	f := strings.Split(got, " ")
	if len(f) != 4 {
		return "", errCredential
	}
	unix, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return "", errCredential
	}
	at := time.Unix(unix, 0)
	if !hmac.Equal([]byte(got), []byte(credential(secret, f[0], f[1], at))) {
		return "", errCredential
	}
	if f[1] != to {
		return "", errOtherProcess
	}
	if now.Sub(at).Abs() > maxSkew {
		return "", errClockSkew
	}
	return f[0], nil
}

// authenticator adds the credential to each request to a server.
type authenticator struct {
	mesh *Mesh
	to   string
}

func (p *authenticator) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(credentialHeader, credential(p.mesh.cfg.Secret, p.mesh.cfg.Process, p.to, p.mesh.cfg.Clock()))
		return next(ctx, req)
	}
}

func (p *authenticator) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next // there are no streams
}

func (p *authenticator) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
