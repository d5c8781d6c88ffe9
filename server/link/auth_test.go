package link

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
)

// Nobody without the secret is listened to, whatever they send.
func TestProof(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	hub, m := n.server("one", nil, nil)
	servers, err := n.table.Servers(t.Context())
	testkit.Must(t, err)
	now := time.Now()
	body, err := proto.Marshal(&linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1, Number: 1,
		Receipts: []*linkv1.Receipt{{UserId: "u", ChatId: "c", State: &chatv1.MemberState{}}}})
	testkit.Must(t, err)
	for name, c := range map[string]struct {
		proof string
		want  int
	}{
		"none":           {"", http.StatusUnauthorized},
		"junk":           {"a b c d", http.StatusUnauthorized},
		"other secret":   {credential([]byte("another secret of 16 bytes"), "evil", "one", now), http.StatusUnauthorized},
		"for another":    {credential(secret, "evil", "two", now), http.StatusUnauthorized},
		"old":            {credential(secret, "evil", "one", now.Add(-2*time.Minute)), http.StatusUnauthorized},
		"early":          {credential(secret, "evil", "one", now.Add(2*time.Minute)), http.StatusUnauthorized},
		"another's name": {credential(secret, "good", "one", now), http.StatusForbidden},
		"good":           {credential(secret, "evil", "one", now), http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+servers[0].Addr+"/parley.link.v1.LinkService/Send", strings.NewReader(string(body)))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/proto")
		req.Header.Set(credentialHeader, c.proof)
		res, err := m.client.Do(req)
		testkit.Must(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s: status %d, want %d", name, res.StatusCode, c.want)
		}
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if len(hub.receipts) != 1 {
		t.Errorf("%d receipts got through, want 1", len(hub.receipts))
	}
}

// Links take no process without a certificate of their authority (S-32).
func TestSec_S_32_TLS(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	n := newNet(t)
	n.members["c"] = []string{"u"}
	start := func(process string, hub Hub, conf *tls.Config) *Mesh {
		cfg := n.config(process, hub)
		cfg.TLS = conf
		return n.mesh(cfg)
	}
	hub := newFakeHub()
	srv := start("one", hub, ca.config(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, ca.config(t)) }()
	t.Cleanup(func() { cancel(); <-done })
	s := routing.Server{ID: "one", Addr: l.Addr().String(), Generation: "g", Epoch: 1}
	good := start("good", nil, ca.config(t))
	bad := start("bad", nil, other.config(t))
	plain := start("plain", nil, nil)
	testkit.Must(t, n.table.Claim(t.Context(), s, time.Hour))
	_, err = n.table.Put(t.Context(), s, []string{"u"}, time.Hour)
	testkit.Must(t, err)
	good.Deliver(sent("c", 1))
	hub.until(t, "a change over TLS", func(h *fakeHub) bool { return len(h.versions["c"]) == 1 })
	for _, m := range []*Mesh{bad, plain} {
		m.Deliver(sent("c", 2))
		testkit.Eventually(t, "a send of another authority has failed", func() bool { return m.Stats().Failed > 0 })
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if len(hub.versions["c"]) != 1 {
		t.Error("a process of another authority was listened to")
	}
}

// Who knows the key hears why it is refused, nobody else does.
func TestRefusalsOfProofs(t *testing.T) {
	now := time.Now()
	foreign := []byte("another secret of 16 bytes")
	for what, c := range map[string]struct {
		proof string
		want  error
	}{
		"good":                   {credential(secret, "one", "two", now), nil},
		"for another process":    {credential(secret, "one", "three", now), errOtherProcess},
		"clock behind":           {credential(secret, "one", "two", now.Add(-2*time.Minute)), errClockSkew},
		"clock ahead":            {credential(secret, "one", "two", now.Add(2*time.Minute)), errClockSkew},
		"other key":              {credential(foreign, "one", "two", now), errCredential},
		"other key, for another": {credential(foreign, "one", "three", now), errCredential},
		"other key and clock":    {credential(foreign, "one", "two", now.Add(time.Hour)), errCredential},
		"of another time": {strings.Replace(credential(secret, "one", "two", now),
			strconv.FormatInt(now.Unix(), 10), strconv.FormatInt(now.Unix()+1, 10), 1), errCredential},
		"nothing":                      {"", errCredential},
		"words":                        {"one two three four", errCredential},
		"beyond the range of a number": {"one two 99999999999999999999 00", errCredential},
	} {
		from, err := verifyCredential(secret, c.proof, "two", now)
		if !errors.Is(err, c.want) || (err == nil) != (from == "one") {
			t.Errorf("%s: %q, %v", what, from, err)
		}
	}
}
