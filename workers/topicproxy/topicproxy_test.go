package topicproxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/link/caller"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/topicproxy"
)

// asked is a client that keeps what it is asked.
type asked struct{ last *http.Request }

func (a *asked) Do(r *http.Request) (*http.Response, error) {
	a.last = r
	return &http.Response{StatusCode: http.StatusTeapot, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader("an answer")), Request: r}, nil
}

// A call goes to a server in the operator's name and without the token; a slot that somebody
// names, or another caller, does not count. Other services are not passed on.
func TestPassedOn(t *testing.T) { synctest.Test(t, testPassedOn) }

func testPassedOn(t *testing.T) {
	expires := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	client := &asked{}
	var until time.Time // when a server comes
	handlers := topicproxy.Handlers(topicproxy.Config{Logger: slog.New(slog.DiscardHandler),
		Servers: func(context.Context) (connect.HTTPClient, string, error) {
			if time.Now().Before(until) {
				return nil, "", errors.New("there are no links")
			}
			return client, "https://server:1", nil
		},
		Operator: func(context.Context) (auth.Operator, bool) {
			return auth.Operator{Name: "ada", ExpiresAt: expires}, true
		}})
	testkit.Equal(t, "services", len(handlers), 5)
	const path = "/parley.topic.v1.TopicAdminService/"
	call := func() *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path+"RunJob?x=y", strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("Parley-Slot", "3")
		r.Header.Set(caller.Header, "mallory")
		r.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		handlers[path].ServeHTTP(rec, r)
		return rec
	}
	rec := call()
	testkit.Equal(t, "answer", rec.Code, http.StatusTeapot)
	testkit.Equal(t, "text", rec.Body.String(), "an answer")
	testkit.Equal(t, "address", client.last.URL.String(), "https://server:1"+path+"RunJob?x=y")
	for _, name := range []string{"Authorization", "Parley-Slot"} {
		testkit.Equal(t, name, client.last.Header.Get(name), "")
	}
	got, err := caller.From(client.last.Header)
	testkit.Must(t, err)
	testkit.Equal(t, "caller", got, caller.Caller{Principal: "ada", Operator: true, Creator: true, ExpiresAt: expires})
	until = time.Now().Add(3 * time.Second)
	testkit.Equal(t, "answer of a server that has come", call().Code, http.StatusTeapot)
	until = time.Now().Add(time.Minute)
	rec = call()
	if rec.Code != http.StatusServiceUnavailable || !strings.Contains(rec.Body.String(), "no server answers") ||
		strings.Contains(rec.Body.String(), "links") {
		t.Errorf("without servers: %d %s", rec.Code, rec.Body)
	}
}

// Servers that do not answer are asked for a while, and then said to be away; what a caller does
// not wait for is not asked again.
func TestServersAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		all := topicproxy.NewDeadLetters(func(context.Context) (connect.HTTPClient, string, error) {
			asked++
			return nil, "", errors.New("there are no links")
		}, func(context.Context) (int, error) { return 4, nil })
		none := func(topic.DeadLetter) error { return nil }
		err := all.Scan(t.Context(), topic.DeadLetterSelection{}, topic.DeadLetterPosition{}, none)
		testkit.Equal(t, "times that a server was looked for", asked, 10)
		if !errors.Is(err, topic.ErrNoServer) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		asked = 0
		err = all.Scan(ctx, topic.DeadLetterSelection{}, topic.DeadLetterPosition{}, none)
		testkit.Equal(t, "times in a second and a half", asked, 2)
		if err == nil {
			t.Error("a list without an answer")
		}
	})
}

// If no server has ever had topics there are no dead letters, and no server is asked.
func TestNoSlots(t *testing.T) {
	all := topicproxy.NewDeadLetters(func(context.Context) (connect.HTTPClient, string, error) {
		t.Error("a server was asked")
		return nil, "", errors.New("none")
	}, func(context.Context) (int, error) { return 0, nil })
	every, first := topic.DeadLetterSelection{}, topic.DeadLetterPosition{}
	testkit.Must(t, all.Scan(t.Context(), every, first, func(topic.DeadLetter) error {
		t.Error("a letter")
		return nil
	}))
	there, err := all.There(t.Context(), []topic.DeadLetter{{}})
	if err != nil || there[0] {
		t.Errorf("%v, %v", there, err)
	}
	if _, err := all.Taken(t.Context(), topic.DeadLetter{}); !errors.Is(err, topic.ErrDeadLetterGone) {
		t.Error(err)
	}
	if err := all.Redrive(t.Context(), topic.DeadLetter{}); !errors.Is(err, topic.ErrDeadLetterGone) {
		t.Error(err)
	}
}
