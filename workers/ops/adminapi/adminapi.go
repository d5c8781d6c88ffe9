// Package adminapi serves operators people, sessions, chats, service accounts, limits and
// the audit: the RPCs of parley.admin.v1 over package admin and package audit.
//
// It owns what is between the wire and the use cases, and that a service whose part the
// process does not have is not served. It does not own authentication, roles, the audit, or
// the table of errors: package ops serves it in its own chain.
//
// Concurrency: everything is safe for concurrent use.
package adminapi

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/store"
)

// Config is what the services work with. Parts that are nil have no service.
type Config struct {
	Store store.Store
	Clock func() time.Time
	Parts admin.Parts
	// Operator returns the name of the caller.
	Operator func(ctx context.Context) string
}

// Handler makes the handler of a service, for package ops.
type Handler = func(...connect.HandlerOption) (path string, handler http.Handler)

// Handlers are the services whose parts there are.
func Handlers(cfg Config) ([]Handler, error) {
	chats := &chatService{admin.NewChats(cfg.Store)}
	log := &auditService{audit.New(cfg.Store, cfg.Clock)}
	list := []Handler{
		func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewChatAdminServiceHandler(chats, o...)
		},
		func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewAuditServiceHandler(log, o...)
		},
	}
	if cfg.Parts.Users != nil {
		people, err := admin.NewPeople(admin.Config{Store: cfg.Store, Parts: cfg.Parts})
		if err != nil {
			return nil, err
		}
		list = append(list, func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewUserAdminServiceHandler(&userService{people}, o...)
		})
	}
	if s := cfg.Parts.Sessions; s != nil {
		list = append(list, func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewSessionAdminServiceHandler(&sessionService{s}, o...)
		})
	}
	if s := cfg.Parts.Services; s != nil {
		list = append(list, func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewServiceAccountAdminServiceHandler(&accountService{s, cfg.Operator}, o...)
		})
	}
	if l := cfg.Parts.Limits; l != nil {
		list = append(list, func(o ...connect.HandlerOption) (string, http.Handler) {
			return adminv1connect.NewLimitAdminServiceHandler(&limitService{l}, o...)
		})
	}
	return list, nil
}

// timestamp is a time on the wire, nil for none.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// millis is a time in unix ms on the wire, nil for 0.
func millis(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(at))
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
