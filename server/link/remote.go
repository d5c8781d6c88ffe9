package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/wait"
)

// owner returns the link to the server that a stream's id names.
func (m *Mesh) owner(ctx context.Context, streamID string) (*peer, error) {
	process, _, _ := strings.Cut(streamID, ".")
	find := func() *peer {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.peers[process]
	}
	if p := find(); p != nil {
		return p, nil
	}
	// The server may be newer than the last discovery.
	if _, err := m.discover(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if p := find(); p != nil {
		return p, nil
	}
	return nil, delivery.ErrStreamGone
}

// VerifySelfReachable returns nil once this process, which must be serving, answers at an
// address: with an address that leads elsewhere its streams would miss what other
// processes send. It retries for Config.DeadAfter. Errors fit into one line.
func (m *Mesh) VerifySelfReachable(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.DeadAfter)
	defer cancel()
	rpc := linkv1connect.NewLinkServiceClient(m.client, m.url(addr), connect.WithInterceptors(&authenticator{m, m.cfg.Process}), connect.WithReadMaxBytes(maxAnswer))
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		// The stream does not exist: the answer identifies its process and changes nothing.
		once, done := context.WithTimeout(ctx, m.cfg.Call)
		_, err := rpc.Ack(once, &linkv1.AckRequest{UserId: m.cfg.Process, StreamId: m.cfg.Process})
		done()
		if err == nil || connect.CodeOf(err) == connect.CodeNotFound {
			return nil
		}
		if wait.For(ctx, pause) == nil {
			continue
		}
		var ce *connect.Error
		if errors.As(err, &ce) {
			err = errors.New(ce.Message())
		}
		return fmt.Errorf("%s does not lead to this process: %w", addr, err)
	}
}

// Ack forwards an acknowledgement to the stream's server. Errors:
// delivery.ErrStreamGone, delivery.ErrPosition, ErrUnreachable.
func (m *Mesh) Ack(ctx context.Context, user, streamID string, position int64) error {
	p, err := m.owner(ctx, streamID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	_, err = p.rpc.Ack(ctx, &linkv1.AckRequest{UserId: user, StreamId: streamID, Position: position})
	return fromWire(err)
}

// Extend forwards an extension to the stream's server. Errors:
// delivery.ErrStreamGone, delivery.ErrNotYours, ErrUnreachable.
func (m *Mesh) Extend(ctx context.Context, user, session, streamID string, until time.Time) error {
	p, err := m.owner(ctx, streamID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	_, err = p.rpc.Extend(ctx, encodeExtend(user, session, streamID, timestamppb.New(until)))
	return fromWire(err)
}

// codes maps errors of a hub to the codes by which they cross a link.
var codes = map[connect.Code]error{
	connect.CodeNotFound: delivery.ErrStreamGone, connect.CodeOutOfRange: delivery.ErrPosition, connect.CodePermissionDenied: delivery.ErrNotYours,
}

func toWire(err error) error {
	if err == nil {
		return nil
	}
	for code, is := range codes {
		if errors.Is(err, is) {
			return connect.NewError(code, is)
		}
	}
	return connect.NewError(connect.CodeInternal, errors.New("failed"))
}

// ErrUnreachable says that the server of a stream does not answer.
var ErrUnreachable = errors.New("link: the stream's server does not answer")

func fromWire(err error) error {
	var ce *connect.Error
	if err == nil || !errors.As(err, &ce) {
		return err
	}
	if is, ok := codes[ce.Code()]; ok {
		return is
	}
	return fmt.Errorf("%w: %s", ErrUnreachable, ce.Message())
}
