package identitymodule

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/ops/adminapi"
)

// process is identity in one of several processes of an installation, over a store in memory.
type process struct {
	*testing.T
	*Module
	now atomic.Int64
}

func (p *process) clock() time.Time { return time.Unix(0, p.now.Load()) }

func newProcess(t *testing.T) *process {
	t.Helper()
	p := &process{T: t}
	p.now.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	st, log := storetest.NewMemory(p.clock), slog.New(slog.DiscardHandler)
	chats := testkit.Value(chat.New(t.Context(),
		chat.Config{Store: st, Clock: p.clock, Generation: "g", Producer: "p"}))(t)
	reader := view.New(view.Config{Store: st, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: p.clock})
	hub := testkit.Value(delivery.New(delivery.Config{History: store.Line("g"),
		Process: "p", Source: reader, Clock: p.clock,
		NewID: chat.NewID, Delivered: chats.Delivered}))(t)
	settings := config.Settings{SignUp: true}
	settings.Codes.Way = "none"
	p.Module = testkit.Value(New(Config{Backend: &backend.Backend{Store: st, Generation: "g"}, Clock: p.clock, Logger: log,
		Metrics: telemetry.NewMetrics(), Key: testkit.Value(auth.LoadKey(t.TempDir()))(t), Chats: chats, Hub: hub,
		Limits:   testkit.Value(limit.New(limit.Config{Table: limit.DefaultTable(), Clock: p.clock, Log: log}))(t),
		Settings: settings, Shared: true,
		Refuse: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusUnauthorized)
		},
		Full:   func(http.ResponseWriter, *http.Request) {},
		Client: func(*http.Request) netip.Prefix { return netip.Prefix{} },
		Revoke: func(auth.Revocation) {}, EndAll: func() {}}))(t)
	testkit.Must(t, p.revoked.Load(t.Context()))
	return p
}

// call calls a procedure of users with a token, or one of operators without.
func (p *process) call(procedure, token, body string) error {
	mux := http.NewServeMux()
	if token == "" {
		list, err := adminapi.Handlers(adminapi.Config{Store: p.cfg.Backend.Store, Clock: p.clock, Parts: p.Parts()})
		testkit.Must(p.T, err)
		for _, h := range list {
			mux.Handle(h())
		}
	} else {
		for _, s := range p.OfUsers() {
			path, h := s.Handler()
			mux.Handle(path, p.Gate.Wrap(h))
		}
	}
	r := httptest.NewRequestWithContext(p.Context(), http.MethodPost, "/parley."+procedure, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return fmt.Errorf("%s: %d %s", procedure, w.Code, w.Body)
	}
	return nil
}

// Whatever ends everything of a user ends the sessions and every access token. A token of 24 hours
// that another process issued, by a clock that is 29 s ahead, stays refused until its age
// refuses it: 30 s after its end, which is 24 h 59 s from now.
func TestEverythingOfAUserEnds(t *testing.T) {
	for name, end := range map[string]func(p *process, token string) error{
		"sign out everywhere": func(p *process, token string) error {
			return p.call("auth.v1.AuthService/RevokeAllSessions", token, `{}`)
		},
		"deletion": func(p *process, token string) error {
			return p.call("user.v1.UserService/DeleteAccount", token, `{"confirmUserId":"ann"}`)
		},
		"deletion that another process carries out": func(p *process, _ string) error {
			return errors.Join(p.people.Delete(p.Context(), "ann", "ann"), p.people.Sweep(p.Context()))
		},
		"suspension": func(p *process, _ string) error {
			return p.call("admin.v1.UserAdminService/SuspendUser", "", `{"userId":"ann","reason":"spam","execute":true}`)
		},
		"end of all sessions by an operator": func(p *process, _ string) error {
			return p.call("admin.v1.SessionAdminService/EndAllSessions", "", `{"userId":"ann","reason":"lost","execute":true}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t)
			start := p.clock()
			tokens := map[string]string{}
			for _, user := range []string{"ann", "bob"} {
				testkit.Must(t, p.cfg.Chats.EnsureUser(t.Context(), user))
				tokens[user] = testkit.Value(p.cfg.Key.IssueFor(user, "ses_of_an_operator", start.Add(29*time.Second),
					24*time.Hour))(t)
			}
			own := testkit.Value(p.sessions.Open(t.Context(), "ann", "phone",
				session.Proof{Hash: sha256.Sum256([]byte(name)), Until: start.Add(time.Minute)}))(t)
			testkit.Must(t, end(p, own.Access))
			if _, err := p.sessions.Refresh(t.Context(), own.Refresh); !errors.Is(err, session.ErrToken) {
				t.Errorf("refresh: %v, want %v", err, session.ErrToken)
			}
			for _, after := range []time.Duration{0, time.Hour, 24 * time.Hour, 24*time.Hour + 31*time.Second,
				24*time.Hour + 58*time.Second} {
				p.now.Store(start.Add(after).UnixNano())
				testkit.Must(t, p.revoked.Load(t.Context()))
				if _, err := p.Gate.Verify(tokens["ann"]); !errors.Is(err, auth.ErrRevoked) {
					t.Errorf("ann after %v: %v, want %v", after, err, auth.ErrRevoked)
				}
				if _, err := p.Gate.Verify(tokens["bob"]); err != nil {
					t.Errorf("bob after %v: %v", after, err)
				}
			}
		})
	}
}

// Processes that know a user refuse the user after a suspension and after a deletion, even with a token that is issued
// later.
func TestLaterTokensOfEndedAccounts(t *testing.T) {
	for name, end := range map[string]func(p *process) error{
		"suspension": func(p *process) error {
			return p.call("admin.v1.UserAdminService/SuspendUser", "", `{"userId":"ann","reason":"spam","execute":true}`)
		},
		"deletion that another process carries out": func(p *process) error {
			return errors.Join(p.people.Delete(p.Context(), "ann", "ann"), p.people.Sweep(p.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t)
			list := func() error {
				p.now.Add(int64(time.Minute))
				testkit.Must(t, p.revoked.Load(t.Context()))
				token := testkit.Value(p.cfg.Key.IssueFor("ann", "ses_of_an_operator", p.clock(), time.Hour))(t)
				return p.call("auth.v1.AuthService/ListSessions", token, `{}`)
			}
			testkit.Must(t, list())
			testkit.Must(t, end(p))
			for range 2 {
				if err := list(); err == nil {
					t.Error("a token that was issued afterwards is taken")
				}
			}
			if name == "suspension" {
				testkit.Must(t, p.people.Restore(t.Context(), "ann"))
				testkit.Must(t, list())
			}
		})
	}
}
