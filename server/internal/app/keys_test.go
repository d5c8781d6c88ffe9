package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// published returns the names of the keys that a server publishes.
func published(t *testing.T, addr string) (ids []string) {
	t.Helper()
	res, err := http.Get("http://" + addr + "/.well-known/jwks.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/jwk-set+json" {
		t.Fatal(res.Status, res.Header, err)
	}
	var document struct{ Keys []struct{ Kid string } }
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	for _, k := range document.Keys {
		ids = append(ids, k.Kid)
	}
	return ids
}

// A running server takes a new key over, publishes it, and still admits tokens of the
// one before; after --at-once it does not.
func TestKeysOfARunningServer(t *testing.T) { // S-06, S-40
	t.Parallel()
	dir := t.TempDir()
	addr := launch(t, dir, "127.0.0.1:0").addr
	old := token(t, dir, "alice")
	if ids := published(t, addr); len(ids) != 1 {
		t.Fatal(ids)
	}
	code, stdout, stderr := run(t.Context(), nil, "--data-dir", dir, "keys", "rotate", "--notice", "1s")
	if code != 0 {
		t.Fatal(stderr)
	}
	testkit.Eventually(t, "the new key is published", func() bool {
		ids := published(t, addr)
		return len(ids) == 2 && strings.HasPrefix(stdout, ids[1])
	})
	admitted := func(tok string) bool {
		_, err := newUser("alice", tok, addr, newTransport(t, false)).chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		return err == nil
	}
	testkit.Eventually(t, "the new key signs", func() bool {
		_, listed, _ := run(t.Context(), nil, "--data-dir", dir, "keys", "list")
		return strings.Contains(listed, "signs now\n") && strings.HasSuffix(strings.TrimSpace(listed), "signs now")
	})
	fresh := token(t, dir, "alice")
	if !admitted(old) || !admitted(fresh) {
		t.Fatal("a rotation refused somebody")
	}
	stream, err := newUser("alice", old, addr, newTransport(t, true)).delivery.Subscribe(t.Context(),
		&deliveryv1.SubscribeRequest{})
	testkit.Must(t, err)
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	if code, _, stderr := run(t.Context(), nil, "--data-dir", dir, "keys", "rotate", "--at-once"); code != 0 {
		t.Fatal(stderr)
	}
	for stream.Receive() { // until the server ends it
	}
	testkit.Eventually(t, "the other keys are refused", func() bool { return !admitted(old) && !admitted(fresh) })
	if ids := published(t, addr); len(ids) != 1 || !admitted(token(t, dir, "alice")) {
		t.Fatal(ids)
	}
}
