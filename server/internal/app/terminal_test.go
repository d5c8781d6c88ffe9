package app_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/internal/app"
)

// The server is killed while somebody writes and somebody else's tail prints: each change
// is a line, once, in order. An interrupt ends the tail with exit code 0.
func TestTailOverKills(t *testing.T) {
	t.Parallel()
	const messages, kills = 60, 3
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	addr := p.addr
	alice := newUser("alice", token(t, dir, "alice"), addr, newTransport(t, false))
	made, err := call(t.Context(), alice.chats.CreateChat, &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetOverview().GetChat().GetChatId()

	ctx, interrupt := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	errs, done := &safeBuffer{}, make(chan int, 1)
	go func() {
		args := []string{"--data-dir", dir, "--listen", addr, "tail", "bob", "--all"}
		done <- app.Run(ctx, args, nil, pw, errs)
		_ = pw.Close()
	}()
	lines := bufio.NewScanner(pr)
	version, sequence := int64(0), int64(0)
	next := func() {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the tail ended with exit code %d, %s", <-done, errs)
		}
		f := &deliveryv1.Frame{}
		if err := protojson.Unmarshal(lines.Bytes(), f); err != nil {
			t.Fatal(err)
		}
		if f.GetChatId() != id || f.GetAfterVersion() > version || f.GetVersion() <= version || f.GetReset_() != nil {
			t.Fatalf("after version %d: %s", version, lines.Text())
		}
		version = f.GetVersion()
		if m := f.GetMessage(); m != nil {
			if sequence++; m.GetSequence() != sequence || m.GetContent() != fmt.Sprint(sequence) {
				t.Fatalf("after message %d: %s", sequence-1, lines.Text())
			}
		}
	}
	for i := range messages {
		if i%(messages/kills) == messages/kills/2 {
			p.kill()
			p = launch(t, dir, addr)
		}
		_, err := call(t.Context(), alice.messages.SendMessage, &messagev1.SendMessageRequest{
			ChatId: id, ClientMessageId: uuid.NewString(), Content: fmt.Sprint(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		if i%5 == 0 {
			for sequence < int64(i+1) {
				next()
			}
		}
	}
	for sequence < messages {
		next()
	}
	interrupt()
	if code := <-done; code != 0 || !strings.Contains(errs.String(), "trying again") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
