package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
)

// brief is a store that takes a few plans and no more.
type brief struct {
	store.Store
	plans int
}

func (b *brief) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table != store.Meta {
		if b.plans--; b.plans < 0 {
			return store.ErrClosed
		}
	}
	return b.Store.Transact(ctx, p)
}

// L-147: without storage there is no permission.
func TestNoStorageNoPermission(t *testing.T) {
	s := newServer(t)
	id := s.group("bob")
	broken, err := chat.New(t.Context(), chat.Config{
		Store: &deaf{Store: s.store.Store}, Clock: time.Now, Generation: "gen", Producer: "deaf",
		Sleep: func(context.Context, time.Duration) error { return errors.New("enough") },
	})
	s.must(err)
	_, err = broken.Change(t.Context(), chat.OpAdd,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cid", Role: "member"})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
	if _, err = broken.Send(t.Context(), chat.Send{Caller: "ann", ChatID: id, Content: "x"}); !errors.Is(err,
		store.ErrUnavailable) {
		t.Error(err)
	}
	s.store.fail(func() error { return store.ErrUnavailable }, nil)
	_, err = s.ann().chat.GetChat(t.Context(), &chatv1.GetChatRequest{ChatId: id})
	wantCode(t, "read", err, connect.CodeUnavailable, "UNAVAILABLE")
	var retry *errdetails.RetryInfo
	for _, d := range connectError(t, err).Details() {
		if m, _ := d.Value(); m != nil {
			if r, ok := m.(*errdetails.RetryInfo); ok {
				retry = r
			}
		}
	}
	if retry.GetRetryDelay().AsDuration() <= 0 {
		t.Error("no time to try again")
	}
}

// deaf answers no read of chats.
type deaf struct{ store.Store }

func (d *deaf) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	if key.Table == store.Meta {
		return d.Store.Get(ctx, key, c)
	}
	return nil, store.ErrUnavailable
}

func (d *deaf) BatchGet(context.Context, []store.Key, store.Consistency) ([]store.Item, error) {
	return nil, store.ErrUnavailable
}
