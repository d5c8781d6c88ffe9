package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// server is the API over a store in memory, behind a stand-in for the gate that
// takes the user's name from a header.
type server struct {
	*testing.T
	url   string
	store *wrapped
	chats *chat.Service
	view  *view.Reader
	log   *syncBuffer

	mu    sync.Mutex
	codes map[string]int // procedure and code
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{T: t, store: &wrapped{Store: &tally{Store: storetest.NewMemory(time.Now)}, t: t}, log: &syncBuffer{},
		codes: map[string]int{}}
	var hub *delivery.Hub
	var err error
	// The service works past the wrapper: failures and waits are those of reads and
	// answers.
	s.chats, err = chat.New(t.Context(), chat.Config{
		Store: s.store.Store, Clock: time.Now, Generation: "gen", Producer: "test",
		Committed: func(c chat.Commit) { hub.Deliver(delivery.Of(c.Events)) },
		Receipt: func(row table.UserChat, head table.Head) {
			hub.Receipt(row.UserID, row.ChatID, s.view.State(head, row))
		},
	})
	s.must(err)
	s.view = view.New(view.Config{Store: s.store, History: store.Line("gen"), TokenKey: make([]byte, view.KeySize),
		Clock: time.Now})
	hub, err = delivery.New(delivery.Config{History: store.Line("gen"),
		Process: "p", Source: s.view, Durable: s.store.Durable,
		Clock: time.Now, NewID: chat.NewID})
	s.must(err)
	// What the hub has to read for its streams it reads in the background.
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- hub.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		<-ran
	})
	a, err := api.New(api.Config{
		Chat: s.chats, View: s.view, Hub: hub, Store: s.store,
		Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: func(procedure, code string, _ time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.codes[procedure+" "+code]++
		},
	})
	s.must(err)
	mux := http.NewServeMux()
	for path, h := range a.Handlers() {
		mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch user := r.Header.Get("X-User"); user {
			case "":
				a.Refuse(w, r, auth.ErrMissingToken)
			case "nobody": // past the gate without a principal
				h.ServeHTTP(w, r)
			default:
				p := auth.Principal{UserID: user, SessionID: "ses", ExpiresAt: time.Now().Add(time.Hour)}
				h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
			}
		}))
	}
	web := httptest.NewUnstartedServer(mux)
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetHTTP1(true)
	web.Config.Protocols.SetUnencryptedHTTP2(true)
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.Start()
	t.Cleanup(web.Close)
	s.url = web.URL
	for _, u := range []string{"ann", "bob", "cid"} {
		s.must(s.chats.EnsureUser(t.Context(), u))
	}
	return s
}

func (s *server) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *server) count(procedure, code string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.codes[procedure+" "+code]
}

// clients of all services, as one user.
type clients struct {
	chat     chatv1connect.ChatServiceClient
	message  messagev1connect.MessageServiceClient
	delivery deliveryv1connect.DeliveryServiceClient
}

func (s *server) clients(hc connect.HTTPClient, user string, opts ...connect.ClientOption) clients {
	opts = append(opts, connect.WithInterceptors(as(user)))
	return clients{
		chat:     chatv1connect.NewChatServiceClient(hc, s.url, opts...),
		message:  messagev1connect.NewMessageServiceClient(hc, s.url, opts...),
		delivery: deliveryv1connect.NewDeliveryServiceClient(hc, s.url, opts...),
	}
}

// as names the user of each request.
type as string

func (u as) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("X-User", string(u))
		return next(ctx, req)
	}
}

func (u as) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("X-User", string(u))
		return conn
	}
}

func (u as) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// h2c is a client that speaks HTTP/2 without TLS.
func h2c(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (s *server) ann() clients { return s.clients(http.DefaultClient, "ann") }

// group makes a group of ann and others.
func (s *server) group(others ...string) string {
	s.Helper()
	res, err := s.ann().chat.CreateChat(s.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: others})
	s.must(err)
	return res.GetOverview().GetChat().GetChatId()
}

// answer is what a plain HTTP request got.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// code and reason of an error in JSON.
func (a answer) error() (code, reason, text string) {
	var e struct {
		Code, Message string
		Details       []struct {
			Type  string
			Debug struct{ Reason string }
		}
	}
	_ = json.Unmarshal(a.body, &e)
	for _, d := range e.Details {
		if d.Type == "google.rpc.ErrorInfo" {
			reason = d.Debug.Reason
		}
	}
	return e.Code, reason, e.Message
}

func (s *server) do(method, path, contentType string, body []byte, header ...string) answer {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+path, bytes.NewReader(body))
	s.must(err)
	req.Header.Set("X-User", "ann")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
		if header[i] == "X-User" {
			req.Header.Set("X-User", header[i+1])
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	s.must(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	s.must(err)
	return answer{res.StatusCode, res.Header, b}
}

// post sends JSON, as curl does.
func (s *server) post(procedure, body string, header ...string) answer {
	s.Helper()
	return s.do(http.MethodPost, procedure, "application/json", []byte(body), header...)
}

// wantCode checks an error's code and reason.
func wantCode(t *testing.T, what string, err error, code connect.Code, reason string) {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) || e.Code() != code || reasonOf(e) != reason {
		t.Fatalf("%s: got %v (%s), want %s %s", what, err, reasonOf(e), code, reason)
	}
}

func connectError(t *testing.T, err error) *connect.Error {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no error of Connect", err)
	}
	return e
}

func reasonOf(e *connect.Error) string {
	if e == nil {
		return ""
	}
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return ""
}

// wrapped is a store with failures on demand. It accepts no eventually consistent read:
// chats and lists are as consistent as the rest.
type wrapped struct {
	store.Store
	t       *testing.T
	mu      sync.Mutex
	durable int
	onRead  func() error
	onSync  error
}

func (w *wrapped) fail(read func() error, sync error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onRead, w.onSync = read, sync
}

func (w *wrapped) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	w.strong(c, key.Table)
	return w.Store.Get(ctx, key, c)
}

func (w *wrapped) Query(ctx context.Context, q store.Query) (store.Page, error) {
	w.strong(q.Consistency, q.Table)
	return w.Store.Query(ctx, q)
}

func (w *wrapped) strong(c store.Consistency, t store.Table) {
	if c != store.Strong {
		w.t.Errorf("eventual read of %s", t)
	}
}

func (w *wrapped) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	w.strong(c, keys[0].Table)
	w.mu.Lock()
	f := w.onRead
	w.mu.Unlock()
	if f != nil {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return w.Store.BatchGet(ctx, keys, c)
}

func (w *wrapped) Durable(ctx context.Context) error {
	w.mu.Lock()
	w.durable++
	err := w.onSync
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.Store.Durable(ctx)
}

func (w *wrapped) waits() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.durable
}

// syncBuffer collects the log.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
