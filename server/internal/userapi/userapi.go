// Package userapi serves the RPCs of parley.user.v1 over package people.
//
// It owns what is between the wire and the use case: the handlers, what text people may
// show, and its part of the table of errors. The caller is known and the request is valid
// when the package is called (package api). Concurrency: a Server is safe for concurrent
// use.
package userapi

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/internal/api"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Config is what the handlers work with.
type Config struct {
	People *people.Service
	// Deleted, if given, ends what a deleted account has open in this process.
	Deleted func(ctx context.Context, p auth.Principal)
}

// Server has the handlers.
type Server struct{ cfg Config }

var _ userv1connect.UserServiceHandler = (*Server)(nil)

// New makes a Server.
func New(c Config) *Server {
	if c.Deleted == nil {
		c.Deleted = func(context.Context, auth.Principal) {}
	}
	return &Server{c}
}

// Service is the service, for package api.
func (s *Server) Service() api.Service {
	return api.Service{Name: userv1connect.UserServiceName, Explain: Refusals.Explain,
		Handler: func(o ...connect.HandlerOption) (string, http.Handler) {
			return userv1connect.NewUserServiceHandler(s, o...)
		}}
}

// caller is the user who calls; there is one, because the chain requires it.
func caller(ctx context.Context) string {
	p, _ := auth.PrincipalFrom(ctx)
	return p.UserID
}

// GetProfile implements UserService.
func (s *Server) GetProfile(ctx context.Context, req *userv1.GetProfileRequest) (*userv1.GetProfileResponse, error) {
	p, err := s.cfg.People.Get(ctx, req.GetUserId())
	if err != nil {
		return nil, err
	}
	return &userv1.GetProfileResponse{Profile: profile(p)}, nil
}

// BatchGetProfiles implements UserService.
func (s *Server) BatchGetProfiles(
	ctx context.Context, req *userv1.BatchGetProfilesRequest,
) (*userv1.BatchGetProfilesResponse, error) {
	wanted := make([]people.Known, len(req.GetKnownProfiles()))
	for i, k := range req.GetKnownProfiles() {
		wanted[i] = people.Known{UserID: k.GetUserId(), Version: -1}
		if k.Version != nil {
			wanted[i].Version = k.GetVersion()
		}
	}
	found, err := s.cfg.People.Batch(ctx, wanted)
	if err != nil {
		return nil, err
	}
	res := &userv1.BatchGetProfilesResponse{}
	for _, p := range found {
		res.Profiles = append(res.Profiles, profile(p))
	}
	return res, nil
}

// UpdateProfile implements UserService.
func (s *Server) UpdateProfile(
	ctx context.Context, req *userv1.UpdateProfileRequest,
) (*userv1.UpdateProfileResponse, error) {
	if name := req.GetDisplayName(); name != "" {
		if err := api.CheckName("display_name", name); err != nil {
			return nil, err
		}
	}
	if err := api.CheckText("about", req.GetAbout()); err != nil {
		return nil, err
	}
	if err := checkAvatar(req.GetAvatar()); err != nil {
		return nil, err
	}
	p, err := s.cfg.People.Update(ctx, caller(ctx), people.ProfileChange{DisplayName: req.DisplayName,
		Avatar: req.Avatar, About: req.About, Etag: req.GetEtag()})
	if err != nil {
		return nil, err
	}
	return &userv1.UpdateProfileResponse{Profile: profile(p)}, nil
}

// SetHandle implements UserService.
func (s *Server) SetHandle(ctx context.Context, req *userv1.SetHandleRequest) (*userv1.SetHandleResponse, error) {
	p, err := s.cfg.People.SetHandle(ctx, caller(ctx), req.GetHandle())
	if err != nil {
		return nil, err
	}
	return &userv1.SetHandleResponse{Profile: profile(p)}, nil
}

// LookupByHandle implements UserService.
func (s *Server) LookupByHandle(
	ctx context.Context, req *userv1.LookupByHandleRequest,
) (*userv1.LookupByHandleResponse, error) {
	p, err := s.cfg.People.FindByHandle(ctx, caller(ctx), req.GetHandle())
	if err != nil {
		return nil, err
	}
	return &userv1.LookupByHandleResponse{Profile: profile(p)}, nil
}

// LookupByIdentifier implements UserService.
func (s *Server) LookupByIdentifier(
	ctx context.Context, req *userv1.LookupByIdentifierRequest,
) (*userv1.LookupByIdentifierResponse, error) {
	p, err := s.cfg.People.FindByIdentifier(ctx, caller(ctx), req.GetIdentifier())
	if err != nil {
		return nil, err
	}
	return &userv1.LookupByIdentifierResponse{Profile: profile(p)}, nil
}

// GetSettings implements UserService.
func (s *Server) GetSettings(ctx context.Context, _ *userv1.GetSettingsRequest) (*userv1.GetSettingsResponse, error) {
	have, err := s.cfg.People.Settings(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	return &userv1.GetSettingsResponse{Settings: settings(have)}, nil
}

// UpdateSettings implements UserService.
func (s *Server) UpdateSettings(
	ctx context.Context, req *userv1.UpdateSettingsRequest,
) (*userv1.UpdateSettingsResponse, error) {
	var who *rows.WhoAdds
	if req.WhoMayAdd != nil {
		w := whoAdds[req.GetWhoMayAdd()]
		who = &w
	}
	have, err := s.cfg.People.SetSettings(ctx, caller(ctx), who, req.FindableByIdentifier)
	if err != nil {
		return nil, err
	}
	return &userv1.UpdateSettingsResponse{Settings: settings(have)}, nil
}

// DeleteAccount implements UserService.
func (s *Server) DeleteAccount(
	ctx context.Context, req *userv1.DeleteAccountRequest,
) (*userv1.DeleteAccountResponse, error) {
	p, _ := auth.PrincipalFrom(ctx)
	if err := s.cfg.People.Recent(ctx, p.UserID, p.SessionID, p.IssuedAt); err != nil {
		return nil, err
	}
	if err := s.cfg.People.Delete(ctx, p.UserID, req.GetConfirmUserId()); err != nil {
		return nil, err
	}
	s.cfg.Deleted(ctx, p)
	return &userv1.DeleteAccountResponse{}, nil
}
