package app_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
)

// A server whose clock is set twelve hours ahead says so and is not ready. When the clock
// is right again, so are the times of the chat that was written to meanwhile.
func TestClockSetAndBack(t *testing.T) {
	t.Parallel()
	var by atomic.Int64
	began := time.Now()
	ctx := app.WithClocks(t.Context(), clock.Clocks{
		Wall:   func() time.Time { return time.Now().Add(time.Duration(by.Load())) },
		Steady: func() time.Duration { return time.Since(began) },
	})
	greeting, logs, _ := greetedIn(ctx, t, "127.0.0.1:0", t.TempDir())
	addr := listening.FindStringSubmatch(greeting)[1]
	alice := newUser("alice", regexp.MustCompile(`=(ey\S+)`).FindStringSubmatch(greeting)[1], addr, newTransport(t, false))
	group, err := alice.chats.CreateChat(t.Context(),
		&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	send := func() time.Duration {
		t.Helper()
		res, err := alice.messages.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: group.GetOverview().GetChat().GetChatId(), Content: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(res.GetCreatedAt().AsTime())
	}
	get := func(path string) (int, string) {
		t.Helper()
		res, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	by.Store(int64(12 * time.Hour))
	if at := send(); at < 11*time.Hour {
		t.Errorf("the message is dated %v from now", at)
	}
	if code, text := get("/readyz"); code != 503 || !strings.Contains(text, "clock") {
		t.Errorf("ready: %d %s", code, text)
	}
	if _, text := get("/metrics"); !regexp.MustCompile(`(?m)^parley_clock_skew_seconds 43\d{3}`).MatchString(text) {
		t.Error("no skew among the metrics")
	}
	testkit.Eventually(t, "the log says that the clock was set", func() bool {
		return strings.Contains(logs.String(), "the clock of this machine was set")
	})
	by.Store(0)
	if code, text := get("/readyz"); code != 200 {
		t.Errorf("ready: %d %s", code, text)
	}
	if at := send(); at > 5*time.Minute {
		t.Errorf("with the right clock the message is dated %v from now", at)
	}
	list, err := alice.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetOverviews() {
		if at := time.Until(c.GetHead().GetChangedAt().AsTime()); at > 5*time.Minute {
			t.Errorf("a chat changed %v from now", at)
		}
	}
}
