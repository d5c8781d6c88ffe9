// Package parts puts together what operators use of identity, for the programs that serve
// them.
//
// It owns how the words of one package become those of package admin, and nothing else.
// Concurrency: everything is safe for concurrent use.
package parts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/identity/revocation"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/store"
)

// Of returns the parts of a process that has all of these.
func Of(
	users *people.Service, sessions *session.Service, accounts *service.Service,
) admin.Parts {
	return admin.Parts{Users: usersOf{users}, Sessions: sessionsOf{sessions}, Services: accountsOf{accounts}}
}

// ForOperators makes the parts of a process that serves operators only. It stores its
// changes, from which the processes of users learn them. key is theirs.
func ForOperators(st store.Store, clock func() time.Time, key *auth.Key, log *slog.Logger) (admin.Parts, error) {
	revoked, err := revocation.New(revocation.Config{Store: st, Clock: clock, Shared: true, Logger: log,
		Apply: func(auth.Revocation) {}}) // it has no streams
	if err != nil {
		return admin.Parts{}, err
	}
	sessions, err := session.New(session.Config{Store: st, Clock: clock, Revoker: revoked,
		Pepper: key.Derive("refresh tokens", session.PepperSize), Record: securitylog.New(log).Record,
		Issue: func(string, string, time.Time) (string, error) { return "", errNoSessions }})
	if err != nil {
		return admin.Parts{}, err
	}
	accounts, err := service.New(service.Config{Store: st, Clock: clock, Revoker: revoked,
		Secret: key.Derive("service keys", service.SecretSize)})
	if err != nil {
		return admin.Parts{}, err
	}
	return Of(people.New(people.Config{Store: st, Clock: clock}), sessions, accounts), nil
}

var errNoSessions = errors.New("parts: a process of operators begins no sessions")

// translateError returns the second error of the pair whose first one err is, or err.
func translateError(err error, pairs ...error) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if errors.Is(err, pairs[i]) {
			return pairs[i+1]
		}
	}
	return err
}

type usersOf struct{ *people.Service }

func (u usersOf) Status(ctx context.Context, user string) (admin.Status, error) {
	s, err := u.Service.Status(ctx, user)
	return admin.Status(s), translateError(err, people.ErrUnknown, admin.ErrNoUser)
}

func (u usersOf) Suspend(ctx context.Context, user string) error {
	return translateError(u.Service.Suspend(ctx, user), people.ErrUnknown, admin.ErrNoUser)
}

func (u usersOf) Restore(ctx context.Context, user string) error {
	return translateError(u.Service.Restore(ctx, user), people.ErrUnknown, admin.ErrNoUser)
}

type sessionsOf struct{ *session.Service }

func (s sessionsOf) List(ctx context.Context, user string) (list []admin.Session, err error) {
	infos, err := s.Service.List(ctx, user)
	for _, i := range infos {
		list = append(list, admin.Session{ID: i.Session, Device: i.Device, CreatedAt: i.Created, UsedAt: i.Used,
			ExpiresAt: i.Expires})
	}
	return list, err
}

func (s sessionsOf) Revoke(ctx context.Context, user, id string) error {
	return translateError(s.End(ctx, user, id, session.Operator), session.ErrNotFound, admin.ErrNoSession)
}

func (s sessionsOf) EndEverything(ctx context.Context, user string) error {
	_, err := s.Service.EndEverything(ctx, user, "", session.Operator)
	return err
}

type accountsOf struct{ *service.Service }

func accountError(err error, missing error) error {
	if errors.Is(err, service.ErrInvalid) {
		return fmt.Errorf("%w: %s", admin.ErrInvalid, strings.TrimPrefix(err.Error(), service.ErrInvalid.Error()+": "))
	}
	return translateError(err, service.ErrNotFound, missing, service.ErrExists, admin.ErrExists, service.ErrDisabled,
		admin.ErrDisabled, service.ErrTooMany, admin.ErrTooMany)
}

func (s accountsOf) Check(scopes []string) error {
	return accountError(s.Service.Check(scopes), admin.ErrNoService)
}

func millis(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMilli(at)
}

func accountTo(a service.Account) admin.Service {
	return admin.Service{ID: a.ID, Description: a.Description, Scopes: a.Scopes, Disabled: a.Disabled,
		CreatedAt: millis(a.CreatedAt), CreatedBy: a.CreatedBy}
}

func keyTo(k service.Key) admin.ServiceKey {
	return admin.ServiceKey{ID: k.ID, CreatedBy: k.CreatedBy, CreatedAt: millis(k.CreatedAt),
		ExpiresAt: millis(k.ExpiresAt), Revoked: k.Revoked}
}

func (s accountsOf) List(ctx context.Context, after string, limit int) (list []admin.Service, more bool, err error) {
	accounts, more, err := s.Service.List(ctx, after, limit)
	for _, a := range accounts {
		list = append(list, accountTo(a))
	}
	return list, more, err
}

func (s accountsOf) Get(ctx context.Context, id string) (admin.Service, []admin.ServiceKey, error) {
	a, keys, err := s.Service.Get(ctx, id)
	var list []admin.ServiceKey
	for _, k := range keys {
		list = append(list, keyTo(k))
	}
	return accountTo(a), list, accountError(err, admin.ErrNoService)
}

func (s accountsOf) Create(ctx context.Context, a admin.Service) (admin.Service, error) {
	made, err := s.Service.Create(ctx, service.Account{ID: a.ID, Description: a.Description, Scopes: a.Scopes,
		CreatedBy: a.CreatedBy})
	return accountTo(made), accountError(err, admin.ErrNoService)
}

func (s accountsOf) SetScopes(ctx context.Context, id string, scopes []string) error {
	_, err := s.Service.SetScopes(ctx, id, scopes)
	return accountError(err, admin.ErrNoService)
}

func (s accountsOf) Disable(ctx context.Context, id string) error {
	_, err := s.Service.Disable(ctx, id)
	return accountError(err, admin.ErrNoService)
}

func (s accountsOf) CreateKey(
	ctx context.Context, id, by string, expires time.Time,
) (key admin.ServiceKey, secret string, err error) {
	k, secret, err := s.Service.CreateKey(ctx, id, by, expires)
	return keyTo(k), secret, accountError(err, admin.ErrNoService)
}

func (s accountsOf) RevokeKey(ctx context.Context, id, key string) error {
	return accountError(s.Service.RevokeKey(ctx, id, key), admin.ErrNoKey)
}

// Recorded passes events of accounts on to the audit: securitylog.New(log, parts.Recorded(r)).
func Recorded(r *audit.Recorder) func(context.Context, securitylog.Event) {
	outcomes := map[securitylog.Kind]string{
		securitylog.CodeRequested: audit.OK, securitylog.SignedIn: audit.OK, securitylog.SessionEnded: audit.OK,
		securitylog.CodeRefused: "limited", securitylog.CodeWrong: "code_wrong", securitylog.CodeUnsent: "not_sent",
		securitylog.SignInRefused: "account_refused", securitylog.RefreshRefused: "token_invalid",
		securitylog.RefreshReused: "token_reused",
	} // Refreshed is not in it: every client does it all the time
	return func(ctx context.Context, e securitylog.Event) {
		outcome, ok := outcomes[e.Kind]
		if !ok {
			return
		}
		actor, target := "address/"+e.Client, ""
		if e.User != "" {
			target = audit.User(e.User)
		}
		if outcome == audit.OK && target != "" {
			actor = target
		}
		// The log has the line; a store that is away must not keep people out.
		_ = r.Record(ctx, audit.Event{Action: audit.Action(strings.ReplaceAll(e.Kind.String(), " ", "_")), Actor: actor,
			Target: target, Outcome: outcome, Detail: e.Reason})
	}
}
