// Package authapi serves the RPCs of parley.auth.v1 over packages signin and session.
//
// It owns what is between the wire and the use cases: the handlers, which procedures need no
// access token and how they are bounded, and its part of the table of errors. It does not own
// the chain around the handlers (package api) nor the check of tokens (package auth).
//
// Concurrency: a Server is safe for concurrent use.
package authapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/internal/api"
)

// Server has the handlers.
type Server struct {
	signin   *signin.Service
	sessions *session.Service
	revoker  session.Revoker
	tickets  *ticket.Service
}

var _ authv1connect.AuthServiceHandler = (*Server)(nil)

// New makes a Server. The revoker ends sessions that package session does not know: those of
// tokens that operators and back ends have made.
func New(s *signin.Service, revoker session.Revoker, tickets *ticket.Service) *Server {
	return &Server{signin: s, sessions: s.Sessions(), revoker: revoker, tickets: tickets}
}

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return api.Service{Name: authv1connect.AuthServiceName, Explain: explain,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			small := connect.WithConditionalHandlerOptions(func(s connect.Spec) []connect.HandlerOption {
				if limit, ok := Tokenless[s.Procedure]; ok {
					return []connect.HandlerOption{connect.WithReadMaxBytes(int(limit))}
				}
				return nil
			})
			o = append(o, connect.WithInterceptors(connect.UnaryInterceptorFunc(work)), small)
			return authv1connect.NewAuthServiceHandler(s, o...)
		}}
}

// RequestCode implements AuthService.
func (s *Server) RequestCode(
	ctx context.Context, req *authv1.RequestCodeRequest,
) (*authv1.RequestCodeResponse, error) {
	r, err := s.signin.RequestCode(ctx, req.GetIdentifier(), clientFrom(ctx))
	if err != nil {
		return nil, err
	}
	return &authv1.RequestCodeResponse{RequestId: r.ID, ExpiresAt: timestamppb.New(r.Expires),
		ResendAt: timestamppb.New(r.ResendAt)}, nil
}

// VerifyCode implements AuthService.
func (s *Server) VerifyCode(
	ctx context.Context, req *authv1.VerifyCodeRequest,
) (*authv1.VerifyCodeResponse, error) {
	tokens, newUser, err := s.signin.WithCode(ctx, signin.Proof{Identifier: req.GetIdentifier(),
		Request: req.GetRequestId(), Code: req.GetCode(), Device: req.GetDevice(), Client: clientFrom(ctx)})
	if err != nil {
		return nil, err
	}
	return &authv1.VerifyCodeResponse{Tokens: tokensOf(tokens), NewUser: newUser}, nil
}

// ExchangeToken implements AuthService.
func (s *Server) ExchangeToken(
	ctx context.Context, req *authv1.ExchangeTokenRequest,
) (*authv1.ExchangeTokenResponse, error) {
	tokens, err := s.signin.WithToken(ctx, req.GetToken(), req.GetDevice())
	if err != nil {
		return nil, err
	}
	return &authv1.ExchangeTokenResponse{Tokens: tokensOf(tokens)}, nil
}

// Refresh implements AuthService.
func (s *Server) Refresh(ctx context.Context, req *authv1.RefreshRequest) (*authv1.RefreshResponse, error) {
	tokens, err := s.sessions.Refresh(ctx, req.GetRefreshToken())
	if err != nil {
		return nil, err
	}
	return &authv1.RefreshResponse{Tokens: tokensOf(tokens)}, nil
}

// SignOut implements AuthService.
func (s *Server) SignOut(ctx context.Context, _ *authv1.SignOutRequest) (*authv1.SignOutResponse, error) {
	caller, err := person(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.end(ctx, caller, caller.SessionID, session.SignedOut); err != nil {
		return nil, err
	}
	return &authv1.SignOutResponse{}, nil
}

// ListSessions implements AuthService.
func (s *Server) ListSessions(
	ctx context.Context, _ *authv1.ListSessionsRequest,
) (*authv1.ListSessionsResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	list, err := s.sessions.List(ctx, caller.UserID)
	if err != nil {
		return nil, err
	}
	res := &authv1.ListSessionsResponse{}
	for _, x := range list[:min(len(list), maxListed)] {
		res.Sessions = append(res.Sessions, &authv1.Session{SessionId: x.Session, Device: x.Device,
			CreatedAt: timestamppb.New(x.Created), LastUsedAt: timestamppb.New(x.Used),
			ExpiresAt: timestamppb.New(x.Expires), Current: x.Session == caller.SessionID})
	}
	return res, nil
}

// maxListed is the number of sessions in an answer. A user has about session.MaxPerUser.
const maxListed = 100

// RevokeSession implements AuthService.
func (s *Server) RevokeSession(
	ctx context.Context, req *authv1.RevokeSessionRequest,
) (*authv1.RevokeSessionResponse, error) {
	caller, err := person(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.end(ctx, caller, req.GetSessionId(), session.Revoked); err != nil {
		return nil, err
	}
	return &authv1.RevokeSessionResponse{}, nil
}

// CreateStreamTicket implements AuthService.
func (s *Server) CreateStreamTicket(
	ctx context.Context, _ *authv1.CreateStreamTicketRequest,
) (*authv1.CreateStreamTicketResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if caller.Kind == auth.KindService {
		return nil, errTicket
	}
	call, _ := connect.CallInfoForHandlerContext(ctx)
	token, err := auth.Bearer(call.RequestHeader())
	if err != nil {
		return nil, err
	}
	t, expires := s.tickets.Issue(token)
	return &authv1.CreateStreamTicketResponse{Ticket: t, ExpiresAt: timestamppb.New(expires)}, nil
}

// RevokeAllSessions implements AuthService. Tokens that others have made in the user's name
// end too, unless the caller's own session continues, whose tokens would end with them.
func (s *Server) RevokeAllSessions(
	ctx context.Context, req *authv1.RevokeAllSessionsRequest,
) (*authv1.RevokeAllSessionsResponse, error) {
	caller, err := person(ctx)
	if err != nil {
		return nil, err
	}
	keep := caller.SessionID
	if !req.GetKeepCurrent() {
		keep = ""
	}
	n, err := s.sessions.EndEverything(ctx, caller.UserID, keep, session.Revoked)
	if err != nil {
		return nil, err
	}
	return &authv1.RevokeAllSessionsResponse{Revoked: int32(n)}, nil
}

// end ends a session of a caller. That of a token which an operator or a back end made is in
// no table, and may have other tokens, which are good for longer than the caller's.
func (s *Server) end(ctx context.Context, caller auth.Principal, id, reason string) error {
	err := s.sessions.End(ctx, caller.UserID, id, reason)
	if errors.Is(err, session.ErrNotFound) && id == caller.SessionID {
		return s.revoker.RevokeSession(ctx, id, s.sessions.Now().Add(auth.TokensEnd))
	}
	return err
}

// principal is the caller of a procedure that needs an access token.
func principal(ctx context.Context) (auth.Principal, error) {
	p, ok := auth.PrincipalFrom(ctx)
	if !ok {
		return p, auth.ErrMissingToken
	}
	return p, nil
}

// errService answers a service account, whose session is its key: it would make itself
// unable to call.
var errService = errors.New("authapi: a service account has no session to end: operators revoke its keys")

// errTicket answers a service account, whose key opens more than a stream and is no browser's.
var errTicket = errors.New("authapi: a service account gets no tickets: its back end sends its key")

// person is the principal who ends sessions.
func person(ctx context.Context) (auth.Principal, error) {
	p, err := principal(ctx)
	if err == nil && p.Kind == auth.KindService {
		err = errService
	}
	return p, err
}

func tokensOf(t session.Tokens) *authv1.Tokens {
	return &authv1.Tokens{
		AccessToken: t.Access, AccessTokenExpiresAt: timestamppb.New(t.AccessExpires.Truncate(time.Second)),
		RefreshToken: t.Refresh, RefreshTokenExpiresAt: timestamppb.New(t.RefreshExpires.Truncate(time.Second)),
		UserId: t.User, SessionId: t.Session,
	}
}
