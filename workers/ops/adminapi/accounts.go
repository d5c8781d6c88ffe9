package adminapi

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/workers/ops/pagetoken"
)

type accountService struct {
	accounts admin.Services
	operator func(ctx context.Context) string
}

var _ adminv1connect.ServiceAccountAdminServiceHandler = (*accountService)(nil)

// Bounds of lists.
const (
	defaultPage = 100
	maxKeys     = 100
)

func accountTo(s admin.Service) *adminv1.ServiceAccount {
	return &adminv1.ServiceAccount{ServiceId: s.ID, Description: s.Description, Scopes: s.Scopes, Disabled: s.Disabled,
		CreatedAt: timestamp(s.CreatedAt), CreatedBy: s.CreatedBy}
}

func keyTo(k admin.ServiceKey) *adminv1.ServiceKey {
	return &adminv1.ServiceKey{KeyId: k.ID, CreatedAt: timestamp(k.CreatedAt), ExpiresAt: timestamp(k.ExpiresAt),
		Revoked: k.Revoked, CreatedBy: k.CreatedBy}
}

// ListServiceAccounts implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) ListServiceAccounts(
	ctx context.Context, req *adminv1.ListServiceAccountsRequest,
) (*adminv1.ListServiceAccountsResponse, error) {
	query := &adminv1.ListServiceAccountsRequest{}
	after, err := pagetoken.Decode(req.GetPageToken(), query)
	if err != nil {
		return nil, err
	}
	list, more, err := s.accounts.List(ctx, string(after), cmp.Or(int(req.GetPageSize()), defaultPage))
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListServiceAccountsResponse{}
	if more && len(list) > 0 {
		out.NextPageToken = pagetoken.Encode([]byte(list[len(list)-1].ID), query)
	}
	for _, one := range list {
		out.ServiceAccounts = append(out.ServiceAccounts, accountTo(one))
	}
	return out, nil
}

// GetServiceAccount implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) GetServiceAccount(
	ctx context.Context, req *adminv1.GetServiceAccountRequest,
) (*adminv1.GetServiceAccountResponse, error) {
	account, keys, err := s.accounts.Get(ctx, req.GetServiceId())
	if err != nil {
		return nil, err
	}
	out := &adminv1.GetServiceAccountResponse{ServiceAccount: accountTo(account)}
	for _, k := range keys[:min(len(keys), maxKeys)] {
		out.Keys = append(out.Keys, keyTo(k))
	}
	return out, nil
}

// CreateServiceAccount implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) CreateServiceAccount(
	ctx context.Context, req *adminv1.CreateServiceAccountRequest,
) (*adminv1.CreateServiceAccountResponse, error) {
	if err := s.accounts.Check(req.GetScopes()); err != nil {
		return nil, err
	}
	account := admin.Service{ID: req.GetServiceId(), Description: req.GetDescription(), Scopes: req.GetScopes(),
		CreatedBy: s.operator(ctx)}
	if req.GetExecute() {
		var err error
		if account, err = s.accounts.Create(ctx, account); err != nil {
			return nil, err
		}
	}
	return &adminv1.CreateServiceAccountResponse{ServiceAccount: accountTo(account)}, nil
}

// SetServiceScopes implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) SetServiceScopes(
	ctx context.Context, req *adminv1.SetServiceScopesRequest,
) (*adminv1.SetServiceScopesResponse, error) {
	if err := s.accounts.Check(req.GetScopes()); err != nil {
		return nil, err
	}
	if req.GetExecute() {
		if err := s.accounts.SetScopes(ctx, req.GetServiceId(), req.GetScopes()); err != nil {
			return nil, err
		}
	}
	account, _, err := s.accounts.Get(ctx, req.GetServiceId())
	if err != nil {
		return nil, err
	}
	return &adminv1.SetServiceScopesResponse{ServiceAccount: accountTo(account)}, nil
}

// DisableServiceAccount implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) DisableServiceAccount(
	ctx context.Context, req *adminv1.DisableServiceAccountRequest,
) (*adminv1.DisableServiceAccountResponse, error) {
	if req.GetExecute() {
		if err := s.accounts.Disable(ctx, req.GetServiceId()); err != nil {
			return nil, err
		}
	}
	account, _, err := s.accounts.Get(ctx, req.GetServiceId())
	if err != nil {
		return nil, err
	}
	return &adminv1.DisableServiceAccountResponse{ServiceAccount: accountTo(account)}, nil
}

// CreateServiceKey implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) CreateServiceKey(
	ctx context.Context, req *adminv1.CreateServiceKeyRequest,
) (*adminv1.CreateServiceKeyResponse, error) {
	if !req.GetExecute() {
		account, _, err := s.accounts.Get(ctx, req.GetServiceId())
		if err == nil && account.Disabled {
			err = admin.ErrDisabled
		}
		if err != nil {
			return nil, err
		}
		return &adminv1.CreateServiceKeyResponse{}, nil
	}
	key, secret, err := s.accounts.CreateKey(ctx, req.GetServiceId(), s.operator(ctx), timeOf(req.GetExpiresAt()))
	if err != nil {
		return nil, err
	}
	return &adminv1.CreateServiceKeyResponse{Key: keyTo(key), Secret: secret}, nil
}

// RevokeServiceKey implements adminv1connect.ServiceAccountAdminServiceHandler.
func (s *accountService) RevokeServiceKey(
	ctx context.Context, req *adminv1.RevokeServiceKeyRequest,
) (*adminv1.RevokeServiceKeyResponse, error) {
	if req.GetExecute() {
		if err := s.accounts.RevokeKey(ctx, req.GetServiceId(), req.GetKeyId()); err != nil {
			return nil, err
		}
		return &adminv1.RevokeServiceKeyResponse{}, nil
	}
	_, keys, err := s.accounts.Get(ctx, req.GetServiceId())
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.ID == req.GetKeyId() {
			return &adminv1.RevokeServiceKeyResponse{}, nil
		}
	}
	return nil, admin.ErrNoKey
}

type limitService struct{ limits admin.Limits }

var _ adminv1connect.LimitAdminServiceHandler = (*limitService)(nil)

// maxLimits is how many limits are shown.
const maxLimits = 200

// ListLimits implements adminv1connect.LimitAdminServiceHandler.
func (s *limitService) ListLimits(
	context.Context, *adminv1.ListLimitsRequest,
) (*adminv1.ListLimitsResponse, error) {
	all, away := s.limits.All()
	out := &adminv1.ListLimitsResponse{SharedAway: away}
	for _, l := range all[:min(len(all), maxLimits)] {
		out.Limits = append(out.Limits, &adminv1.LimitRule{Name: l.Name, Key: l.Key, Rate: l.Rate,
			Period: durationpb.New(l.Period), Burst: l.Burst, FailsClosed: l.FailsClosed})
	}
	return out, nil
}

// GetLimitState implements adminv1connect.LimitAdminServiceHandler.
func (s *limitService) GetLimitState(
	ctx context.Context, req *adminv1.GetLimitStateRequest,
) (*adminv1.GetLimitStateResponse, error) {
	remaining, after, err := s.limits.State(ctx, req.GetLimit(), req.GetKey())
	if err != nil {
		return nil, err
	}
	return &adminv1.GetLimitStateResponse{Remaining: remaining, RetryAfter: durationpb.New(after)}, nil
}
