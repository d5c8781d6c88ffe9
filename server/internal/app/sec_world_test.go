package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
)

// secWorld is the program of a server as it is composed, with every service that users
// reach, over an engine on the disk whose writes are counted. Nothing runs in the
// background but the hub, topics and identity; nothing is limited by rate.
type secWorld struct {
	*testing.T
	p      *program
	http   http.Handler
	url    string
	writes *secWrites
	log    *secLog
	tokens map[string]string
	client *http.Client
}

// secWrites counts what is written, but for the clock's row, which goes by time.
type secWrites struct {
	store.Store
	n    atomic.Int64
	mu   sync.Mutex
	keys []string // of the last writes
	// turn has room for one holder: the request that during watches, or a write of a service.
	// Services write whenever their timers expire: heartbeats of groups and cursors of earlier
	// requests, for example. Without turns such a write falls between the start and the end of
	// a watched request, and is counted as written by it.
	turn chan struct{}
}

// secService marks the contexts of services.
type secService struct{}

// secHeld is how long a write of a service waits for the end of a watched request. A request
// that itself waits for a service to write lasts longer. That write then counts.
const secHeld = 10 * time.Second

// await waits for the turn of a write of a service, and returns how to end it. Writes of requests do not
// wait.
func (w *secWrites) await(ctx context.Context) (end func(), err error) {
	if ctx.Value(secService{}) == nil {
		return func() {}, nil
	}
	t := time.NewTimer(secHeld)
	defer t.Stop()
	select {
	case w.turn <- struct{}{}:
		return func() { <-w.turn }, nil
	case <-t.C:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *secWrites) note(keys ...string) {
	w.n.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, keys...)
}

func (w *secWrites) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == store.Meta {
		return w.Store.Transact(ctx, p)
	}
	end, err := w.await(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = w.Store.Transact(ctx, p)
	if err == nil { // a plan whose conditions fail writes nothing
		for _, one := range p.Writes {
			w.note(one.Key.String())
		}
	}
	return err
}

func (w *secWrites) BatchWrite(ctx context.Context, writes []store.Write) error {
	end, err := w.await(ctx)
	if err != nil {
		return err
	}
	defer end()
	for _, one := range writes {
		w.note(one.Key.String())
	}
	return w.Store.BatchWrite(ctx, writes)
}

// during returns which rows f, a request, writes.
func (w *secWrites) during(f func()) []string {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	w.mu.Lock()
	w.keys = nil
	w.mu.Unlock()
	f()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.keys)
}

// secLogs counts what changes the logs of topics.
type secLogs struct {
	commitlog.Log
	writes *secWrites
}

func (l secLogs) Create(ctx context.Context, t commitlog.Topic) error {
	l.writes.note("a topic")
	return l.Log.Create(ctx, t)
}

func (l secLogs) Append(ctx context.Context, appends []commitlog.Append) ([]commitlog.Appended, error) {
	l.writes.note(fmt.Sprintf("%d batches", len(appends)))
	return l.Log.Append(ctx, appends)
}

func (l secLogs) Begin(ctx context.Context, appends []commitlog.Append) (*commitlog.Pending, error) {
	l.writes.note(fmt.Sprintf("%d batches", len(appends)))
	return l.Log.Begin(ctx, appends)
}

func (l secLogs) Trim(ctx context.Context, p commitlog.Partition, before int64) (int64, error) {
	l.writes.note("a trim")
	return l.Log.Trim(ctx, p, before)
}

func (l secLogs) Delete(ctx context.Context, topic uint64) error {
	l.writes.note("a deletion")
	return l.Log.Delete(ctx, topic)
}

// secLog collects what is logged, at every level.
type secLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *secLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *secLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newSecWorld(t *testing.T) *secWorld {
	t.Helper()
	w := &secWorld{T: t, log: &secLog{}, tokens: map[string]string{}}
	cfg, says := parse(t, []string{"--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--registry-listen",
		"127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--demo-users", "off",
		"--topic-creators", "maker", "--codes", "log", "--limits", "off", "--max-requests", "0"}, nil)
	if says != "" {
		t.Fatal(says)
	}
	cfg.onLoopback = true
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b, err := openBackend(cfg, io.Discard, log, func(err error) { t.Error(err) })
	w.must(err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	w.count(b)
	w.p, err = build(t.Context(), cfg, b, log)
	w.must(err)
	t.Cleanup(w.p.close)
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), secService{}, true))
	var running sync.WaitGroup
	running.Go(func() { _ = w.p.hub.Run(ctx, func() {}) })
	for _, s := range append(w.p.topics.Services(), w.p.identity.Services()...) {
		// As in a server, requests come when all services are ready: until the revocations are
		// read, every token is refused.
		ready, once := make(chan struct{}), sync.Once{}
		running.Go(func() {
			defer once.Do(func() { close(ready) })
			if err := s.Run(ctx, func() { once.Do(func() { close(ready) }) }); err != nil {
				t.Error(err)
			}
		})
		<-ready
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.http = w.p.server("127.0.0.1:1").srv.Handler
	web := httptest.NewUnstartedServer(w.http)
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetHTTP1(true)
	web.Config.Protocols.SetUnencryptedHTTP2(true)
	web.Start()
	t.Cleanup(web.Close)
	w.url = web.URL
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	w.client = &http.Client{Transport: tr}
	for _, user := range []string{"ann", "amy", "bob", "cid", "dan", "yan", "zoe", "maker", "new"} {
		w.result("chat.v1.ChatService/ListChats", user, struct{}{}) // the first call writes the user's row
	}
	w.accounts()
	return w
}

// count puts the counters below the program.
func (w *secWorld) count(b *backend.Backend) {
	w.writes = &secWrites{Store: b.Store, turn: make(chan struct{}, 1)}
	b.Store = w.writes
	b.Logs = secLogs{b.Logs, w.writes}
}

func (w *secWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// token returns a user's token, or the key of a service account; the user is known from then on.
func (w *secWorld) token(user string) string {
	w.Helper()
	if w.tokens[user] == "" {
		token, err := w.p.key.Issue(user, time.Now(), time.Hour)
		w.must(err)
		w.must(w.p.chats.EnsureUser(w.Context(), user))
		w.tokens[user] = token
	}
	return w.tokens[user]
}

// secMethod is a procedure that users reach.
type secMethod struct {
	protoreflect.MethodDescriptor
	procedure string
}

// methods are all procedures that the program serves to users, found through what it
// registered, so that none can be forgotten.
func (w *secWorld) methods() (all []secMethod) {
	w.Helper()
	for _, procedures := range w.p.api.Procedures() {
		for _, procedure := range procedures {
			name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(procedure, "/"), "/", "."))
			d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
			w.must(err)
			all = append(all, secMethod{d.(protoreflect.MethodDescriptor), procedure})
		}
	}
	slices.SortFunc(all, func(a, b secMethod) int { return strings.Compare(a.procedure, b.procedure) })
	return all
}

// secAnswer is an answer, of a stream its first messages and its end.
type secAnswer struct {
	status int
	reason string // of an error
	body   string
}

// call calls a procedure with a body in JSON. Of a stream all is read that comes before its
// end, or before it has nothing more to say.
func (w *secWorld) call(m secMethod, user string, body any) secAnswer {
	w.Helper()
	b, err := json.Marshal(body)
	w.must(err)
	kind := "application/json"
	if m.IsStreamingServer() || m.IsStreamingClient() {
		kind = "application/connect+json"
		b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
	}
	return w.send(m.procedure, kind, b, "Bearer "+w.token(user))
}

func (w *secWorld) send(procedure, kind string, body []byte, authorization string) secAnswer {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+procedure, bytes.NewReader(body))
	w.must(err)
	req.Header.Set("Content-Type", kind)
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := w.client.Do(req)
	w.must(err)
	defer res.Body.Close()
	a := secAnswer{status: res.StatusCode}
	if kind != "application/connect+json" || res.StatusCode != http.StatusOK {
		text, err := io.ReadAll(res.Body)
		w.must(err)
		a.body = string(text)
		a.reason = secReason(text)
		return a
	}
	for { // a stream: until it ends, or shows that it is open
		var head [5]byte
		if _, err := io.ReadFull(res.Body, head[:]); err != nil {
			return a
		}
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(res.Body, text); err != nil {
			return a
		}
		a.body += string(text)
		if head[0]&2 != 0 {
			a.reason = secReason(text)
			return a
		}
		if bytes.Contains(text, []byte(`"heartbeat"`)) || bytes.Contains(text, []byte(`"attached"`)) ||
			bytes.Contains(text, []byte(`"backfill"`)) {
			return a
		}
	}
}

// secReason is the reason of an error, also of one at the end of a stream.
func secReason(text []byte) string {
	type failure struct {
		Code    string
		Details []struct{ Debug struct{ Reason string } }
	}
	var e struct {
		failure
		Error failure
	}
	_ = json.Unmarshal(text, &e)
	for _, d := range slices.Concat(e.Details, e.Error.Details) {
		if d.Debug.Reason != "" {
			return d.Debug.Reason
		}
	}
	return e.Code + e.Error.Code
}

// result of a call that must succeed, as JSON.
func (w *secWorld) result(procedure, user string, body any) map[string]any {
	w.Helper()
	b, err := json.Marshal(body)
	w.must(err)
	a := w.send("/parley."+procedure, "application/json", b, "Bearer "+w.token(user))
	if a.status != http.StatusOK {
		w.Fatalf("%s by %s: %d %s", procedure, user, a.status, a.body)
	}
	var m map[string]any
	w.must(json.Unmarshal([]byte(a.body), &m))
	return m
}
