package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/wait"
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

// Remote returns how calls are made to another process that its Carried serves, and the
// address that they begin with. They prove whose they are, and have connections of their own.
// ErrUnreachable: the process is not one of those that are known.
func (m *Mesh) Remote(ctx context.Context, process string) (connect.HTTPClient, string, error) {
	p, err := m.owner(ctx, process)
	if errors.Is(err, delivery.ErrStreamGone) {
		return nil, "", fmt.Errorf("%w: there is no process %s", ErrUnreachable, process)
	}
	if err != nil {
		return nil, "", err
	}
	return &carried{m, process}, m.url(p.server.Addr), nil
}

// Any does what Remote does for one of the servers that are known: the one that has answered
// last. ErrUnreachable: there is none.
func (m *Mesh) Any() (connect.HTTPClient, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var best *peer
	for _, p := range m.peers {
		if p.connected() && (best == nil || p.lastSeen().After(best.lastSeen())) {
			best = p
		}
	}
	if best == nil {
		return nil, "", fmt.Errorf("%w: no server has answered", ErrUnreachable)
	}
	return &carried{m, best.server.ID}, m.url(best.server.Addr), nil
}

// carried makes calls to a process.
type carried struct {
	mesh *Mesh
	to   string
}

// Do implements connect.HTTPClient.
func (c *carried) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set(credentialHeader, credential(c.mesh.cfg.Secret, c.mesh.cfg.Process, c.to, c.mesh.cfg.Clock()))
	return c.mesh.carrier.Do(r)
}

// VerifySelfReachable returns nil once this process, which must be serving, answers at an
// address: with an address that leads elsewhere its streams would miss what other
// processes send. It retries for Config.DeadAfter. Errors fit into one line.
func (m *Mesh) VerifySelfReachable(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.DeadAfter)
	defer cancel()
	rpc := linkv1connect.NewLinkServiceClient(m.client, m.url(addr),
		connect.WithInterceptors(&authenticator{m, m.cfg.Process}), connect.WithReadMaxBytes(maxAnswer))
	var last error
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		// The stream does not exist: the answer identifies its process and changes nothing.
		once, done := context.WithTimeout(ctx, m.cfg.Call)
		_, err := rpc.Ack(once, &linkv1.AckRequest{UserId: m.cfg.Process, StreamId: m.cfg.Process})
		done()
		if err == nil || connect.CodeOf(err) == connect.CodeNotFound {
			return nil
		}
		if ctx.Err() != nil && last != nil {
			err = last // the end of the time cut this try short, which says nothing of the address
		}
		last = err
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
	connect.CodeNotFound: delivery.ErrStreamGone, connect.CodeOutOfRange: delivery.ErrPosition,
	connect.CodePermissionDenied: delivery.ErrNotYours,
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
