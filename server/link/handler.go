package link

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/netutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/delivery"
	numbers "github.com/parley-chat/parley/server/delivery/link"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/wait"
)

// Limits of the transport.
const (
	maxRequest = 16 << 20 // one change alone may be a whole plan's
	maxAnswer  = 4 << 10
	maxHeader  = 8 << 10
	maxSkew    = time.Minute // between the clocks of two processes
	// maxConnections leaves files for clients, whoever connects here.
	maxConnections = 2 * routing.MaxServers
)

// proofHeader carries the proof of a request.
const proofHeader = "Parley-Proof"

// proof is what a process shows that knows the secret: from, to, time, and a MAC of
// them.
func proof(secret []byte, from, to string, at time.Time) string {
	text := from + " " + to + " " + strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("parley link " + text))
	return text + " " + hex.EncodeToString(mac.Sum(nil))
}

// Reasons to refuse a proof. Only who knows the secret hears the last two.
var (
	errProof = errors.New("no proof of the key that all processes share")
	errOther = errors.New("another process answers there")
	errClock = errors.New("the clocks of the two processes differ by more than a minute")
)

// isOtherKey reports whether a call was answered by a process of ours that has another key.
func isOtherKey(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeUnauthenticated && ce.Message() == errProof.Error()
}

// checkProof returns whom a proof is of, or why it is none.
func checkProof(secret []byte, got, to string, now time.Time) (from string, err error) {
	f := strings.Split(got, " ")
	if len(f) != 4 {
		return "", errProof
	}
	unix, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return "", errProof
	}
	at := time.Unix(unix, 0)
	if !hmac.Equal([]byte(got), []byte(proof(secret, f[0], f[1], at))) {
		return "", errProof
	}
	if f[1] != to {
		return "", errOther
	}
	if now.Sub(at).Abs() > maxSkew {
		return "", errClock
	}
	return f[0], nil
}

// prove adds the proof to each request to a server.
type prove struct {
	mesh *Mesh
	to   string
}

func (p *prove) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(proofHeader, proof(p.mesh.cfg.Secret, p.mesh.cfg.Process, p.to, p.mesh.cfg.Clock()))
		return next(ctx, req)
	}
}

func (p *prove) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next // there are no streams
}

func (p *prove) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (m *Mesh) url(addr string) string {
	if m.cfg.TLS != nil {
		return "https://" + addr
	}
	return "http://" + addr
}

// newClient speaks HTTP/2 only: many calls share a connection, and a lost one is
// noticed by its pings.
func newClient(t *tls.Config) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(t != nil)
	protocols.SetUnencryptedHTTP2(t == nil)
	tr := &http.Transport{
		Protocols: &protocols, DialContext: (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second, WriteByteTimeout: 5 * time.Second},
	}
	if t != nil {
		tr.TLSClientConfig = t.Clone()
	}
	// No redirect, no proxy: an address names a process of ours.
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Serve serves the links of other processes on a listener until ctx ends. With a TLS
// configuration clients must show certificates of its ClientCAs.
func (m *Mesh) Serve(ctx context.Context, l net.Listener, t *tls.Config) error {
	var protocols http.Protocols
	protocols.SetHTTP2(t != nil)
	protocols.SetUnencryptedHTTP2(t == nil)
	srv := &http.Server{
		Handler: m.Handler(), Protocols: &protocols, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(m.cfg.Logger.Handler(), slog.LevelWarn),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250, SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	l = netutil.LimitListener(l, maxConnections)
	if t != nil {
		l = tls.NewListener(l, serverTLS(t))
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("link: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTime)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		_ = srv.Close()
	}
	<-failed
	return nil
}

func serverTLS(t *tls.Config) *tls.Config {
	t = t.Clone()
	t.ClientAuth = tls.RequireAndVerifyClientCert
	t.NextProtos = []string{"h2"}
	t.MinVersion = tls.VersionTLS13
	return t
}

// Handler serves the service to those who have the secret. Headers alone decide: the
// body of anybody else is not read.
func (m *Mesh) Handler() http.Handler {
	path, h := linkv1connect.NewLinkServiceHandler(&handler{m}, connect.WithReadMaxBytes(maxRequest), connect.WithSendMaxBytes(maxAnswer))
	mux := http.NewServeMux()
	mux.Handle(path, h)
	write := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := checkProof(m.cfg.Secret, r.Header.Get(proofHeader), m.cfg.Process, m.cfg.Clock())
		if r.Method != http.MethodPost {
			err = errProof
		}
		if err != nil {
			_ = write.Write(w, r, connect.NewError(connect.CodeUnauthenticated, err))
			return
		}
		// Beyond this connect would read on to tell how large the request is.
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest+maxHeader)
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), fromKey{}, from)))
	})
}

type fromKey struct{}

// handler serves LinkService.
type handler struct{ mesh *Mesh }

var errNoStreams = errors.New("this process holds no streams")

func (h *handler) check(m proto.Message) error {
	if h.mesh.cfg.Hub == nil {
		return connect.NewError(connect.CodeUnimplemented, errNoStreams)
	}
	if err := h.mesh.validator.Validate(m); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	return nil
}

// Send implements linkv1connect.LinkServiceHandler.
func (h *handler) Send(ctx context.Context, req *linkv1.SendRequest) (*linkv1.SendResponse, error) {
	if err := h.check(req); err != nil {
		return nil, err
	}
	if from, _ := ctx.Value(fromKey{}).(string); from != req.GetFrom() {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("the proof is another process's"))
	}
	e, err := decodeEnvelope(req)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	switch err := h.mesh.receiver.Receive(e, h.mesh.cfg.Clock()); {
	case err == nil:
		if e.Bye {
			h.mesh.leave(e.From)
		}
		return &linkv1.SendResponse{}, nil
	case errors.Is(err, numbers.ErrGeneration):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
}

// Ack implements linkv1connect.LinkServiceHandler.
func (h *handler) Ack(_ context.Context, req *linkv1.AckRequest) (*linkv1.AckResponse, error) {
	if err := h.check(req); err != nil {
		return nil, err
	}
	s, err := h.mesh.cfg.Hub.Stream(req.GetUserId(), req.GetStreamId())
	if err == nil {
		err = s.Ack(req.GetPosition())
	}
	return &linkv1.AckResponse{}, toWire(err)
}

// Extend implements linkv1connect.LinkServiceHandler.
func (h *handler) Extend(_ context.Context, req *linkv1.ExtendRequest) (*linkv1.ExtendResponse, error) {
	if err := h.check(req); err != nil {
		return nil, err
	}
	err := h.mesh.cfg.Hub.Extend(req.GetUserId(), req.GetSessionId(), req.GetStreamId(), req.GetExpiresAt().AsTime())
	return &linkv1.ExtendResponse{}, toWire(err)
}

// What a hub answers crosses a link as a code.
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
	// It may have come since the last look.
	if _, err := m.discover(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if p := find(); p != nil {
		return p, nil
	}
	return nil, delivery.ErrStreamGone
}

// Reach returns nil once this process, which must be serving, finds itself at an address:
// one that leads elsewhere, or nowhere, would leave its streams without what others send.
// It tries for as long as a dead server would be waited for. Errors fit into one line.
func (m *Mesh) Reach(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Forget)
	defer cancel()
	rpc := linkv1connect.NewLinkServiceClient(m.client, m.url(addr), connect.WithInterceptors(&prove{m, m.cfg.Process}), connect.WithReadMaxBytes(maxAnswer))
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		// A stream that there is not: the answer shows who gives it, and changes nothing.
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

// Ack hands an acknowledgement over to the stream's server. Errors:
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

// Extend hands an extension over to the stream's server. Errors:
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
