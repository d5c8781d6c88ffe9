package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// Another process's own calls reach what it serves there, with a proof of whose they are;
// without one they do not, and a process that serves nothing, or is not known, says so.
func TestCarriedCalls(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.carried = map[string]http.Handler{"two": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s from %s, credential %t", r.Method, r.URL.Path, b, From(r.Context()),
			r.Header.Get("Other") != "")
	})}
	_, one := n.server("one", nil, nil)
	n.server("two", nil, nil)
	n.server("three", nil, nil)
	ask := func(client connect.HTTPClient, method, url, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		testkit.Must(t, err)
		res, err := client.Do(r)
		testkit.Must(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		testkit.Must(t, err)
		return res.StatusCode, string(b)
	}
	call := func(process, path string) (int, string) {
		client, base, err := one.Remote(t.Context(), process)
		testkit.Must(t, err)
		return ask(client, http.MethodPost, base+path, "hello")
	}
	if code, text := call("two", "/any/Call"); code != http.StatusOK ||
		text != "POST /any/Call hello from one, credential false" {
		t.Errorf("%d %s", code, text)
	}
	client, base, err := one.Remote(t.Context(), "two")
	testkit.Must(t, err)
	if code, text := ask(client, http.MethodGet, base+"/any/Call?q", ""); code != http.StatusOK ||
		!strings.HasPrefix(text, "GET /any/Call  from one") {
		t.Errorf("a read: %d %s", code, text)
	}
	for method, path := range map[string]string{
		http.MethodPut: "/any/Call", http.MethodGet: "/parley.link.v1.LinkService/Send",
	} {
		if code, _ := ask(client, method, base+path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s %s is answered with %d", method, path, code)
		}
	}
	if code, _ := call("three", "/any/Call"); code != http.StatusNotFound {
		t.Errorf("a process that serves nothing answers with %d", code)
	}
	if _, _, err := one.Remote(t.Context(), "nobody"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("a process that is not listed: %v", err)
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+"/any/Call", nil)
	testkit.Must(t, err)
	res, err := one.carrier.Do(r) // without the proof
	testkit.Must(t, err)
	defer res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a call without a proof is answered with %d", res.StatusCode)
	}
}

// Any leads to a server that has answered; without one it says so.
func TestAnyServer(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.carried = map[string]http.Handler{"two": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "two")
	})}
	_, one := n.server("one", nil, nil)
	if _, _, err := one.Any(); !errors.Is(err, ErrUnreachable) {
		t.Errorf("without servers: %v", err)
	}
	n.server("two", nil, nil)
	var client connect.HTTPClient
	var base string
	testkit.Succeeds(t, "a server", func() (err error) {
		client, base, err = one.Any()
		return err
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/any/Call", nil)
	testkit.Must(t, err)
	res, err := client.Do(r)
	testkit.Must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	testkit.Equal(t, "who answers", string(b), "two")
}
