package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
)

// others stands for the other processes, and notes what happens in which order.
type others struct {
	mu    sync.Mutex
	steps []string
	err   error
}

func (o *others) note(step string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = append(o.steps, step)
	return o.err
}

func (o *others) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

func (o *others) route(_ context.Context, user string) (func(), error) {
	if err := o.note("route " + user); err != nil {
		return nil, err
	}
	return func() { _ = o.note("release " + user) }, nil
}

func (o *others) Ack(_ context.Context, user, id string, position int64) error {
	return o.note(fmt.Sprint("ack ", user, " ", id, " ", position))
}

func (o *others) Extend(_ context.Context, user, session, id string, _ time.Time) error {
	return o.note(fmt.Sprint("extend ", user, " ", session, " ", id))
}

// noted is a store that records the first read after each step of others.
type noted struct {
	store.Store
	o *others
}

func (n *noted) Query(ctx context.Context, q store.Query) (store.Page, error) {
	n.o.mu.Lock()
	if n.o.steps = append(n.o.steps, "read"); len(n.o.steps) > 1 && n.o.steps[len(n.o.steps)-2] == "read" {
		n.o.steps = n.o.steps[:len(n.o.steps)-1]
	}
	n.o.mu.Unlock()
	return n.Store.Query(ctx, q)
}

// A stream's route is acknowledged before it reads anything and released after it;
// other servers' streams are asked for there.
func TestElsewhere(t *testing.T) {
	o := &others{}
	st := &noted{Store: storetest.NewMemory(time.Now), o: o}
	chats, err := chat.New(t.Context(), chat.Config{Store: st.Store, Clock: time.Now, Generation: "gen", Producer: "test",
		Committed: func(chat.Commit) {}})
	if err != nil {
		t.Fatal(err)
	}
	reader := view.New(view.Config{Store: st, History: store.Line("gen"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	hub, err := delivery.New(delivery.Config{History: store.Line("gen"), Process: "p", Source: reader, Clock: time.Now,
		NewID: chat.NewID})
	if err != nil {
		t.Fatal(err)
	}
	a, err := api.New(api.Config{
		Chat: chats, View: reader, Hub: hub, Store: st, Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}, Route: o.route, PeerStreams: o,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := a.Handlers()["/"+deliveryv1connect.DeliveryServiceName+"/"]
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := auth.Principal{UserID: "ann", SessionID: "ses", ExpiresAt: time.Now().Add(time.Hour)}
		h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	}))
	defer web.Close()
	c := deliveryv1connect.NewDeliveryServiceClient(web.Client(), web.URL)

	open := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := c.Subscribe(ctx, &deliveryv1.SubscribeRequest{})
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			for _, f := range stream.Msg().GetFrames() {
				if f.GetHeartbeat().GetToken() != "" {
					return nil // all is read
				}
			}
		}
		return stream.Err()
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	var steps []string
	testkit.Eventually(t, "the handler ends, a moment after its client has gone", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		steps = slices.Clone(o.steps)
		return len(steps) == 3
	})
	testkit.Equal(t, "steps", steps, []string{"route ann", "read", "release ann"})
	if _, err := c.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: "q.str_1", Position: 7}); err != nil {
		t.Error(err)
	}
	if _, err := c.Extend(t.Context(), &deliveryv1.ExtendRequest{StreamId: "q.str_1"}); err != nil {
		t.Error(err)
	}
	o.mu.Lock()
	if want := []string{"ack ann q.str_1 7", "extend ann ses q.str_1"}; !slices.Equal(o.steps[3:], want) {
		t.Errorf("%q, want %q", o.steps[3:], want)
	}
	o.mu.Unlock()

	for _, tt := range []struct {
		err  error
		want connect.Code
	}{
		{fmt.Errorf("%w: secret 10.0.0.7", api.ErrPeersUnavailable), connect.CodeUnavailable},
		{delivery.ErrStreamGone, connect.CodeNotFound}, {delivery.ErrPosition, connect.CodeOutOfRange},
		{delivery.ErrNotYours, connect.CodePermissionDenied},
		{errors.New("secret 10.0.0.7"), connect.CodeInternal},
	} {
		o.fail(tt.err)
		_, ack := c.Ack(t.Context(), &deliveryv1.AckRequest{StreamId: "q.str_1", Position: 7})
		_, extend := c.Extend(t.Context(), &deliveryv1.ExtendRequest{StreamId: "q.str_1"})
		for what, err := range map[string]error{"ack": ack, "extend": extend, "subscribe": open()} {
			if connect.CodeOf(err) != tt.want || strings.Contains(err.Error(), "10.0.0.7") {
				t.Errorf("%s after %v: %v", what, tt.err, err)
			}
		}
	}
}
