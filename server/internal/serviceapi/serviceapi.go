// Package serviceapi serves the RPCs of parley.service.v1 to back ends, and knows which
// scope of a service account opens which procedure of all services.
//
// It owns the handlers, and the one table of scopes. The callers know the account and the
// users for whom it may speak (packages identity/service and auth). Concurrency: a Server
// is safe for concurrent use.
package serviceapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	servicev1 "github.com/parley-chat/parley/gen/parley/service/v1"
	"github.com/parley-chat/parley/gen/parley/service/v1/servicev1connect"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/internal/api"
)

// tokenTime is how long a token is good unless the caller says otherwise.
const tokenTime = 15 * time.Minute

// scopes are what service accounts need for procedures that they may call in a user's name,
// and for their own. Everything else they call as their own user only.
var scopes = map[string]auth.Scope{
	servicev1connect.BackendServiceIssueUserTokenProcedure: service.ScopeTokens,
	servicev1connect.BackendServiceEndUserSessionProcedure: service.ScopeTokens,
	servicev1connect.BackendServiceCreateUserProcedure:     service.ScopeUsers,

	userv1connect.UserServiceGetProfileProcedure:       service.ScopeUsers,
	userv1connect.UserServiceBatchGetProfilesProcedure: service.ScopeUsers,
	userv1connect.UserServiceUpdateProfileProcedure:    service.ScopeUsers,
	userv1connect.UserServiceSetHandleProcedure:        service.ScopeUsers,

	chatv1connect.ChatServiceGetChatProcedure:            service.ScopeRead,
	chatv1connect.ChatServiceListChatsProcedure:          service.ScopeRead,
	chatv1connect.ChatServiceListMembersProcedure:        service.ScopeRead,
	messagev1connect.MessageServiceListMessagesProcedure: service.ScopeRead,
	messagev1connect.MessageServiceListChangesProcedure:  service.ScopeRead,

	chatv1connect.ChatServiceCreateChatProcedure:       service.ScopeChats,
	chatv1connect.ChatServiceAddMemberProcedure:        service.ScopeChats,
	chatv1connect.ChatServiceRemoveMemberProcedure:     service.ScopeChats,
	chatv1connect.ChatServiceLeaveChatProcedure:        service.ScopeChats,
	chatv1connect.ChatServiceUpdateMemberRoleProcedure: service.ScopeChats,
	chatv1connect.ChatServiceUpdateChatProcedure:       service.ScopeChats,

	messagev1connect.MessageServiceSendMessageProcedure: service.ScopeMessages,
}

const (
	backEnds = "/" + servicev1connect.BackendServiceName + "/"
	topics   = "/parley.topic.v1."
)

// Permit says whether a principal may call a procedure. Errors: auth.ErrScope.
func Permit(p auth.Principal, procedure string) error {
	forBackEnds := strings.HasPrefix(procedure, backEnds)
	own := p.UserID == auth.ServiceUserPrefix+p.Service
	scope, named := scopes[procedure]
	switch {
	case p.Kind == auth.KindUser && !forBackEnds:
		return nil
	case p.Kind != auth.KindService:
	case named && p.Scopes.Has(scope) && (own || !forBackEnds):
		return nil
	case !own || forBackEnds:
	case p.Scopes.Has(service.ScopeAPI), p.Scopes.Has(service.ScopeTopics) && strings.HasPrefix(procedure, topics):
		return nil
	}
	return auth.ErrScope
}

// Config is what a Server works with; all of it is required.
type Config struct {
	Key   *auth.Key
	Clock func() time.Time
	// Users says whether tokens may be made for a user.
	Users interface {
		Active(ctx context.Context, user string) (bool, error)
	}
	// Revoker ends sessions.
	Revoker interface {
		RevokeSession(ctx context.Context, session string, until time.Time) error
	}
	// EnsureUser writes the row of a user if there is none.
	EnsureUser func(ctx context.Context, user string) error
}

// Server has the handlers.
type Server struct{ cfg Config }

var _ servicev1connect.BackendServiceHandler = (*Server)(nil)

// New makes a Server.
func New(cfg Config) *Server { return &Server{cfg} }

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return api.Service{Name: servicev1connect.BackendServiceName, Explain: Refusals.Explain,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return servicev1connect.NewBackendServiceHandler(s, o...)
		}}
}

// IssueUserToken implements BackendService.
func (s *Server) IssueUserToken(
	ctx context.Context, req *servicev1.IssueUserTokenRequest,
) (*servicev1.IssueUserTokenResponse, error) {
	now := s.cfg.Clock() // a user whose tokens are ended meanwhile gets one of before
	p, err := s.speaker(ctx, req.GetUserId())
	if err != nil {
		return nil, err
	}
	session := req.GetSessionId()
	switch {
	case session == "":
		session = service.SessionOf(p.Service)
	case !service.Owns(p.Service, session):
		return nil, errSession
	}
	ttl := tokenTime
	if req.GetTtl() != nil {
		ttl = min(req.GetTtl().AsDuration(), auth.MaxServiceTTL)
	}
	token, err := s.cfg.Key.IssueThrough(p, req.GetUserId(), session, now, ttl)
	if err != nil {
		return nil, err
	}
	return &servicev1.IssueUserTokenResponse{AccessToken: token, SessionId: session,
		ExpiresAt: timestamppb.New(now.Add(ttl).Truncate(time.Second))}, nil
}

// speaker is the caller, who may speak for a user.
func (s *Server) speaker(ctx context.Context, user string) (auth.Principal, error) {
	p, _ := auth.PrincipalFrom(ctx) // there is one: the chain asks for it
	if !p.Scopes.SpeakFor(user) {
		return p, errUser
	}
	active, err := s.cfg.Users.Active(ctx, user)
	if err == nil && !active {
		err = errUser
	}
	return p, err
}

// EndUserSession implements BackendService.
func (s *Server) EndUserSession(
	ctx context.Context, req *servicev1.EndUserSessionRequest,
) (*servicev1.EndUserSessionResponse, error) {
	p, _ := auth.PrincipalFrom(ctx)
	if !service.Owns(p.Service, req.GetSessionId()) {
		return nil, errSession
	}
	until := s.cfg.Clock().Add(auth.ServiceTokensEnd)
	if err := s.cfg.Revoker.RevokeSession(ctx, req.GetSessionId(), until); err != nil {
		return nil, err
	}
	return &servicev1.EndUserSessionResponse{}, nil
}

// CreateUser implements BackendService.
func (s *Server) CreateUser(
	ctx context.Context, req *servicev1.CreateUserRequest,
) (*servicev1.CreateUserResponse, error) {
	if _, err := s.speaker(ctx, req.GetUserId()); err != nil {
		return nil, err
	}
	if err := s.cfg.EnsureUser(ctx, req.GetUserId()); err != nil {
		return nil, err
	}
	return &servicev1.CreateUserResponse{}, nil
}
