package link

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/delivery/linkseq"
)

// Handler serves requests with a valid credential. It decides by headers alone: it reads
// no body of anybody else.
func (m *Mesh) Handler() http.Handler {
	path, h := linkv1connect.NewLinkServiceHandler(&handler{m}, connect.WithReadMaxBytes(maxRequest),
		connect.WithSendMaxBytes(maxAnswer))
	mux := http.NewServeMux()
	mux.Handle(path, h)
	write := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := verifyCredential(m.cfg.Secret, r.Header.Get(credentialHeader), m.cfg.Process, m.cfg.Clock())
		own := m.cfg.Carried == nil || strings.HasPrefix(r.URL.Path, path)
		if r.Method != http.MethodPost && (own || r.Method != http.MethodGet) {
			err = errCredential
		}
		if err != nil {
			_ = write.Write(w, r, connect.NewError(connect.CodeUnauthenticated, err))
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), fromKey{}, from))
		if !own {
			// A stream may last, and bounds each of its messages itself.
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // all transports can
			m.cfg.Carried.ServeHTTP(w, r)
			return
		}
		// Without this bound connect would read on to report the size of the request.
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest+maxHeader)
		mux.ServeHTTP(w, r)
	})
}

type fromKey struct{}

// From is the process that makes a call, which has proved it; empty outside of a link.
func From(ctx context.Context) string {
	from, _ := ctx.Value(fromKey{}).(string)
	return from
}

// handler serves LinkService.
type handler struct{ mesh *Mesh }

var (
	errNoStreams = errors.New("this process holds no streams")
	errNoChats   = errors.New("this process stores no messages")
	errRefused   = errors.New("the message was not stored")
)

func (h *handler) validate(m proto.Message) error {
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
	if err := h.validate(req); err != nil {
		return nil, err
	}
	if From(ctx) != req.GetFrom() {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("the credential is another process's"))
	}
	e, err := decodeEnvelope(req)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	switch err := h.mesh.receiver.Receive(e, h.mesh.cfg.Clock()); {
	case err == nil:
		if e.Closing {
			h.mesh.onDeparted(e.From)
		}
		return &linkv1.SendResponse{}, nil
	case errors.Is(err, linkseq.ErrGeneration):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
}

// Ack implements linkv1connect.LinkServiceHandler.
func (h *handler) Ack(_ context.Context, req *linkv1.AckRequest) (*linkv1.AckResponse, error) {
	if err := h.validate(req); err != nil {
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
	if err := h.validate(req); err != nil {
		return nil, err
	}
	err := h.mesh.cfg.Hub.Extend(req.GetUserId(), req.GetSessionId(), req.GetStreamId(), req.GetExpiresAt().AsTime())
	return &linkv1.ExtendResponse{}, toWire(err)
}

// Submit implements linkv1connect.LinkServiceHandler. Why a message was refused is not
// said: the caller finds that out itself.
func (h *handler) Submit(ctx context.Context, req *linkv1.SubmitRequest) (*linkv1.SubmitResponse, error) {
	if err := h.validate(req); err != nil {
		return nil, err
	}
	if h.mesh.cfg.Accept == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errNoChats)
	}
	sent, err := h.mesh.cfg.Accept(ctx, decodeSend(req))
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errRefused)
	}
	return encodeSent(sent), nil
}
