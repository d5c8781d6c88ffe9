package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/authapi"
	"github.com/parley-chat/parley/server/internal/rest"
	"github.com/parley-chat/parley/server/internal/serviceapi"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/internal/userapi"
	"github.com/parley-chat/parley/server/search/record"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
)

// fixture is the REST API in front of the real RPCs over a store in memory. The
// bearer token is the user's name.
type fixture struct {
	testing.TB
	handler http.Handler
	store   *moody
	chats   *chat.Service
	hub     *delivery.Hub
	api     *api.API

	mu      sync.Mutex
	codes   map[string]int // procedure and code
	tickets *ticket.Service
}

// moody is a store that fails as it is told to.
type moody struct {
	store.Store
	mu   sync.Mutex
	errs []error
}

// fail makes plans end with errors in their order, and from then on with the last.
func (m *moody) fail(errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.errs = errs
}

func (m *moody) Transact(ctx context.Context, p store.Plan) error {
	m.mu.Lock()
	var err error
	if len(m.errs) > 0 {
		err, m.errs = m.errs[0], m.errs[min(1, len(m.errs)-1):]
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.Store.Transact(ctx, p)
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{TB: t, store: &moody{Store: storetest.NewMemory(time.Now)}, codes: map[string]int{}}
	var err error
	w.chats, err = chat.New(t.Context(), chat.Config{
		Store: w.store, Clock: time.Now, Generation: "gen", Producer: "test",
		Committed: func(c chat.Commit) { w.hub.Deliver(delivery.Of(c.Events)) },
	})
	w.must(err)
	reader := view.New(view.Config{Store: w.store, History: store.Line("gen"), TokenKey: make([]byte, view.KeySize),
		Clock: time.Now})
	w.hub, err = delivery.New(delivery.Config{History: store.Line("gen"),
		Process: "p", Source: reader, Durable: w.store.Durable,
		Clock: time.Now, NewID: chat.NewID})
	w.must(err)
	// What the hub has to read for its streams it reads in the background.
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- w.hub.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		<-ran
	})
	observe := func(procedure, code string, _ time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.codes[procedure+" "+code]++
	}
	w.api, err = api.New(api.Config{Chat: w.chats, View: reader, Hub: w.hub, Store: w.store,
		Logger: slog.New(slog.DiscardHandler), Observe: observe,
		More: append(topicrpc.New(topicrpc.Config{Streams: topicrpc.NewStreams(nil)}).Services(),
			api.NewAnalytics(record.New(record.Config{Store: w.store, Clock: time.Now, NewID: chat.NewID,
				Retention: time.Hour})).Service(), w.signIn(), serviceapi.New(serviceapi.Config{Clock: time.Now}).Service(),
			userapi.New(userapi.Config{People: people.New(people.Config{Store: w.store, Clock: time.Now,
				NewID: chat.NewID, Chats: w.chats, Hub: w.hub})}).Service())})
	w.must(err)
	w.handler, err = rest.New(rest.Config{Handlers: w.api.Handlers(), Codec: api.RESTCodec, Gate: w.gate,
		Services: w.api.Names(), Observe: observe, Redeem: w.tickets.Redeem,
		MaxBody: map[string]int64{topicrpc.PublishProcedure: topicrpc.MaxPublishRequest},
		Streams: []rest.Stream{{Path: api.EventsPath, Procedure: api.EventsProcedure, Codec: api.EventsCodec,
			Request: api.EventsRequest}}})
	w.must(err)
	for _, u := range []string{"ann", "bob", "cid", "dan"} {
		w.must(w.chats.EnsureUser(t.Context(), u))
	}
	return w
}

// signIn is the service that signs people in, which sends no codes.
func (w *fixture) signIn() api.Service {
	w.Helper()
	nothing := func(context.Context, securitylog.Event) {}
	sessions, err := session.New(session.Config{Store: w.store, Clock: time.Now, Pepper: make([]byte, 32), Revoker: w,
		Issue: func(user, _ string, _ time.Time) (string, error) { return user, nil }, Record: nothing})
	w.must(err)
	people, err := signin.New(signin.Config{Store: w.store, Clock: time.Now, Pepper: make([]byte, 32), Sessions: sessions,
		NewID: chat.NewID, Record: nothing})
	w.must(err)
	w.tickets, err = ticket.New(w.store, make([]byte, ticket.KeySize), time.Now)
	w.must(err)
	return authapi.New(people, w, w.tickets).Service()
}

// RevokeSession makes the fixture a revoker.
func (*fixture) RevokeSession(context.Context, string, time.Time) error { return nil }

// RevokeUser makes it one of users.
func (*fixture) RevokeUser(context.Context, string, time.Time, time.Time) error { return nil }

func (w *fixture) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			w.api.Refuse(rw, r, auth.ErrMissingToken)
			return
		}
		p := auth.Principal{UserID: user, SessionID: "ses", ExpiresAt: time.Now().Add(time.Hour)}
		next.ServeHTTP(rw, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	})
}

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *fixture) count(procedure, code string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.codes[procedure+" "+code]
}

// answer is what a request got.
type answer struct {
	testing.TB
	status int
	header http.Header
	body   []byte
}

// do makes a request; headers come in pairs, and one with an empty value is left
// out.
func (w *fixture) do(user, method, target, body string, headers ...string) answer {
	w.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Del(headers[i])
		if headers[i+1] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	b, err := io.ReadAll(rec.Result().Body)
	w.must(err)
	return answer{w.TB, rec.Code, rec.Result().Header, b}
}

// want checks the status, and of an error the reason.
func (a answer) want(status int, reason string) answer {
	a.Helper()
	if got := a.reason(); a.status != status || got != reason {
		a.Fatalf("got %d %s, want %d %s: %.300s", a.status, got, status, reason, a.body)
	}
	return a
}

// reason is that of an error; empty for anything else.
func (a answer) reason() string {
	if a.status < 400 {
		return ""
	}
	s, err := a.problem()
	if err != nil {
		a.Fatalf("%d is no google.rpc.Status: %s", a.status, a.body)
	}
	for _, d := range s.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil && info.GetDomain() == "parley" {
			return info.GetReason()
		}
	}
	return "(none)"
}

func (a answer) problem() (*spb.Status, error) {
	s := &spb.Status{}
	return s, protojson.Unmarshal(a.body, s)
}

// at is a value of the answer's JSON by its path.
func (a answer) at(path ...any) any {
	a.Helper()
	var v any
	if err := json.NewDecoder(bytes.NewReader(a.body)).Decode(&v); err != nil {
		a.Fatalf("%v: %s", err, a.body)
	}
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				a.Fatalf("no %v in %s", path, a.body)
			}
			v = l[p]
		}
	}
	return v
}

const chats = "/api/v1/chats"

// group makes a group of ann and others and returns its path.
func (w *fixture) group(others ...string) string {
	w.Helper()
	b, err := json.Marshal(map[string]any{"type": "CHAT_TYPE_GROUP", "name": "g", "memberIds": others})
	w.must(err)
	id, _ := w.do("ann", "POST", chats, string(b)).want(201, "").at("overview", "chat", "chatId").(string)
	return chats + "/" + id
}
