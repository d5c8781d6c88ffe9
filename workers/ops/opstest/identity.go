package opstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// ServiceSecret is what authenticates with a key that CreateKey makes. It must not be in any
// record.
const ServiceSecret = "canary-secret-0815"

// Identity are the parts of identity: users in the store, all else in memory.
type Identity struct {
	store store.Store

	mu       sync.Mutex
	steps    []string // what was called that changes something
	sessions map[string][]admin.Session
	services []admin.Service
	keys     map[string][]admin.ServiceKey
	// Fail, if given, is the error of a step, by its name.
	Fail map[string]error
}

// Parts are the parts as package admin knows them.
func (i *Identity) Parts() admin.Parts {
	return admin.Parts{Users: users{i}, Sessions: sessions{i}, Services: services{i}, Limits: limits{}}
}

// Steps are what was called that changes something, in order; they are forgotten.
func (i *Identity) Steps() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	steps := i.steps
	i.steps = nil
	return steps
}

// SignIn opens a session of a user.
func (i *Identity) SignIn(user, session string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sessions == nil {
		i.sessions = map[string][]admin.Session{}
	}
	at := time.Unix(1_700_000_000, 0)
	i.sessions[user] = append(i.sessions[user], admin.Session{ID: session, Device: "a phone", CreatedAt: at, UsedAt: at,
		ExpiresAt: at.Add(time.Hour)})
}

// step notes a step, and returns the error that it has to have.
func (i *Identity) step(name string, args ...string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.steps = append(i.steps, strings.Join(append([]string{name}, args...), " "))
	return i.Fail[name]
}

type users struct{ *Identity }

func (u users) Status(ctx context.Context, user string) (admin.Status, error) {
	item, err := u.store.Get(ctx, table.UserKey(user), store.Strong)
	if err == nil && item == nil {
		err = admin.ErrNoUser
	}
	return admin.Status(table.UserFrom(user, item).Status), err
}

func (u users) set(ctx context.Context, user string, status admin.Status) error {
	err := u.store.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpUpdate, Key: table.UserKey(user), Cond: store.Exists(), Name: "user",
		Update: store.Update{Set: store.NewItem(store.Attr{Name: table.AttrStatus, Value: store.String(string(status))})},
	}}})
	var gone *store.ConditionError
	if errors.As(err, &gone) {
		return admin.ErrNoUser
	}
	return err
}

func (u users) Suspend(ctx context.Context, user string) error {
	if err := u.step("suspend", user); err != nil {
		return err
	}
	return u.set(ctx, user, admin.Suspended)
}

func (u users) Restore(ctx context.Context, user string) error {
	if err := u.step("restore", user); err != nil {
		return err
	}
	return u.set(ctx, user, admin.Active)
}

type sessions struct{ *Identity }

func (s sessions) List(_ context.Context, user string) ([]admin.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sessions[user]), nil
}

func (s sessions) Revoke(_ context.Context, user, session string) error {
	if err := s.step("end", user, session); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sessions[user])
	s.sessions[user] = slices.DeleteFunc(s.sessions[user], func(one admin.Session) bool { return one.ID == session })
	if len(s.sessions[user]) == n {
		return admin.ErrNoSession
	}
	return nil
}

func (s sessions) EndEverything(_ context.Context, user string) error {
	if err := s.step("end everything", user); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, user)
	return nil
}

type services struct{ *Identity }

func (s services) find(id string) (int, error) {
	i := slices.IndexFunc(s.services, func(one admin.Service) bool { return one.ID == id })
	if i < 0 {
		return 0, admin.ErrNoService
	}
	return i, nil
}

func (s services) List(_ context.Context, after string, limit int) (list []admin.Service, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.services {
		switch {
		case one.ID <= after:
		case len(list) == limit:
			return list, true, nil
		default:
			list = append(list, one)
		}
	}
	return list, false, nil
}

func (s services) Get(_ context.Context, service string) (admin.Service, []admin.ServiceKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(service)
	if err != nil {
		return admin.Service{}, nil, err
	}
	return s.services[i], slices.Clone(s.keys[service]), nil
}

func (services) Check(scopes []string) error {
	for _, scope := range scopes {
		if scope != "messages.send" && scope != "users.write" {
			return fmt.Errorf("%w: there is no scope %.40q", admin.ErrInvalid, scope)
		}
	}
	return nil
}

func (s services) Create(_ context.Context, one admin.Service) (admin.Service, error) {
	if err := s.step("create", one.Description); err != nil {
		return one, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.ID == "" {
		one.ID = fmt.Sprintf("svc-%d", len(s.services))
	}
	if _, err := s.find(one.ID); err == nil {
		return one, admin.ErrExists
	}
	one.CreatedAt = time.Unix(1_700_000_000, 0)
	s.services = append(s.services, one)
	slices.SortFunc(s.services, func(a, b admin.Service) int { return strings.Compare(a.ID, b.ID) })
	return one, nil
}

func (s services) SetScopes(_ context.Context, service string, scopes []string) error {
	if err := s.step("set scopes", service); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(service)
	if err == nil {
		s.services[i].Scopes = scopes
	}
	return err
}

func (s services) Disable(_ context.Context, service string) error {
	if err := s.step("disable", service); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(service)
	if err == nil {
		s.services[i].Disabled = true
	}
	return err
}

func (s services) CreateKey(
	_ context.Context, service, by string, expires time.Time,
) (key admin.ServiceKey, secret string, err error) {
	if err := s.step("create key", service, by); err != nil {
		return key, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.find(service)
	switch {
	case err != nil:
		return key, "", err
	case s.services[i].Disabled:
		return key, "", admin.ErrDisabled
	}
	if s.keys == nil {
		s.keys = map[string][]admin.ServiceKey{}
	}
	key = admin.ServiceKey{ID: fmt.Sprintf("key_%d", len(s.keys[service])), CreatedAt: time.Unix(1_700_000_000, 0),
		ExpiresAt: expires, CreatedBy: by}
	s.keys[service] = append(s.keys[service], key)
	return key, ServiceSecret, nil
}

func (s services) RevokeKey(_ context.Context, service, key string) error {
	if err := s.step("revoke key", service, key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.keys[service] {
		if s.keys[service][i].ID == key {
			s.keys[service][i].Revoked = true
			return nil
		}
	}
	return admin.ErrNoKey
}

type limits struct{}

func (limits) All() (list []admin.Limit, sharedAway bool) {
	return []admin.Limit{{Name: "send", Key: "user", Rate: 1, Period: time.Second, Burst: 60},
		{Name: "otp_identifier", Key: "identifier", Rate: 10, Period: 24 * time.Hour, Burst: 1, FailsClosed: true}}, true
}

func (limits) State(_ context.Context, limit, _ string) (remaining int64, retryAfter time.Duration, err error) {
	if limit != "send" {
		return 0, 0, admin.ErrNoLimit
	}
	return 0, 1500 * time.Millisecond, nil
}
