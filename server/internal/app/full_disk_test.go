package app_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// smallDisk mounts a file system of a size in bytes, where the test may.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skip("not run: a file system cannot be mounted: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// writer sends messages to a chat of its own, and knows which were acknowledged.
type writer struct {
	*user
	chat string

	mu    sync.Mutex
	acked []string
}

// write sends until ctx ends, or until it is refused for want of room.
func (w *writer) write(ctx context.Context, t *testing.T, from int) {
	raw := make([]byte, 10_000) // what compresses well fills no disk
	_, _ = rand.Read(raw)
	text := base64.StdEncoding.EncodeToString(raw)
	for n := from; ctx.Err() == nil; n++ {
		content := fmt.Sprint(w.name, " ", n, " ", text)
		_, err := w.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: w.chat, Content: content})
		var e *connect.Error
		switch {
		case err == nil:
			w.mu.Lock()
			w.acked = append(w.acked, content)
			w.mu.Unlock()
		case ctx.Err() != nil:
			return
		case errors.As(err, &e) && e.Code() == connect.CodeResourceExhausted:
			return
		default:
			t.Errorf("a send: %v", err)
			return
		}
	}
}

// has reports whether the chat has all that was acknowledged.
func (w *writer) has(t *testing.T) {
	t.Helper()
	var got []string
	after := int64(0)
	for {
		res, err := w.messages.ListMessages(t.Context(),
			&messagev1.ListMessagesRequest{ChatId: w.chat, AfterSequence: &after, PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range res.GetMessages() {
			got = append(got, m.GetContent())
			after = m.GetSequence()
		}
		if len(res.GetMessages()) == 0 {
			break
		}
	}
	seen := map[string]bool{}
	for _, c := range got {
		seen[c] = true
	}
	for _, c := range w.acked {
		if !seen[c] {
			t.Fatalf("%s: %d acknowledged, %d there, %.20q is not", w.name, len(w.acked), len(got), c)
		}
	}
}

// A disk that runs full while the server serves costs nothing that was acknowledged:
// writes are refused while there still is room for what the store must do, reads continue,
// and when there is room again so do writes.
func TestDiskThatRunsFull(t *testing.T) {
	t.Parallel() // it mostly waits
	disk := smallDisk(t, 256<<20)
	ballast := filepath.Join(disk, "of somebody else")
	if err := os.WriteFile(ballast, make([]byte, 120<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &benchFixture{b: t, ctx: t.Context(), dir: filepath.Join(disk, "data")}
	r.p = launch(t, r.dir, "127.0.0.1:0")
	r.readKey()
	writers := make([]*writer, 16)
	r.user("bob", false)
	for i := range writers {
		u := r.user(fmt.Sprint("ann", i), i%2 == 0)
		writers[i] = &writer{user: u, chat: r.group(u, "bob")}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	each(len(writers), len(writers), func(i int) { writers[i].write(ctx, t, 0) })
	if ctx.Err() != nil {
		t.Fatal("the disk did not become full")
	}
	// It stays so under all calls while the server asks the file system twice.
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		each(len(writers), len(writers), func(i int) {
			_, err := writers[i].messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: writers[i].chat, Content: "x"})
			if err == nil { // the relay has deleted rows, say
				return
			}
			if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "storage is full") {
				t.Errorf("a send: %v", err)
			}
			if _, err := writers[i].chats.ListChats(ctx, &chatv1.ListChatsRequest{}); err != nil {
				t.Errorf("a read: %v", err)
			}
		})
		time.Sleep(50 * time.Millisecond) // a thousand calls of each sort, not all that the machine can
	}
	for _, w := range writers {
		w.has(t)
	}
	if lines := strings.Count(r.p.log.tail(4<<20), "\n"); lines > 300 {
		t.Errorf("%d lines in the log", lines)
	}
	select {
	case <-r.p.gone:
		t.Fatalf("the server has ended: %s", r.p.log.tail(2<<10))
	default:
	}
	// There is room again.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for _, w := range writers {
		testkit.Succeeds(t, "write when there is room again", func() error {
			_, err := w.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: w.chat, Content: "again"})
			return err
		})
		w.acked = append(w.acked, "again")
	}
	// Nothing is lost by a kill either.
	r.p.kill()
	p := launch(t, r.dir, r.p.addr)
	for _, w := range writers {
		w.has(t)
	}
	p.kill()
}
