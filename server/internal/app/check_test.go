package app_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/store"
)

// checked runs the command on the real binary.
func checked(t testing.TB, dir string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(binary(t), append([]string{"--data-dir", dir, "check"}, args...)...)
	b, err := cmd.CombinedOutput()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

// spoil removes the rows of a table that can be derived, behind everybody's back.
func spoil(t testing.TB, dir string, tables ...store.Table) {
	t.Helper()
	o, err := backend.OpenOffline(backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tables {
		for row, err := range o.Raw.Rows(name) {
			if err == nil {
				err = o.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: row.Key}}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
}

// A server that was killed under load leaves nothing to find. Whatever can be derived is
// taken away then, the repair is killed again and again, and in the end the server starts
// and has all that it acknowledged.
func TestCheckAndRepair(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	tr := newTransport(t, false)
	alice, bob := newUser("alice", token(t, dir, "alice"), p.addr, tr), newUser("bob", token(t, dir, "bob"), p.addr, tr)
	acknowledged := map[string][]string{}
	for i := range 30 {
		res, err := alice.chats.CreateChat(ctx,
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("group ", i),
				MemberIds: []string{"bob"}})
		if err != nil {
			t.Fatal(err)
		}
		id := res.GetOverview().GetChat().GetChatId()
		for j := range 20 {
			res, err := []*user{alice, bob}[j%2].messages.SendMessage(ctx,
				&messagev1.SendMessageRequest{ChatId: id, Content: fmt.Sprint("message ", j)})
			if err != nil {
				t.Fatal(err)
			}
			acknowledged[id] = append(acknowledged[id], res.GetMessageId())
		}
	}
	if code, out := checked(t, dir); code != 2 || !strings.Contains(out, "in use by another process") {
		t.Errorf("while the server runs: %d %s", code, out)
	}
	p.kill()
	if code, out := checked(t, dir); code != 0 || !strings.Contains(out, "nothing is wrong") {
		t.Fatalf("after a kill: %d %s", code, out)
	}
	spoil(t, dir, store.ChatCounters, store.Chats, store.ChatMemberships, store.Messages, store.DeliveryState, store.Users,
		store.IdempotencyKeys)
	if code, out := checked(t, dir); code != 1 || !strings.Contains(out, "head_wrong: chat_counters/") ||
		strings.Contains(out, "repaired") {
		t.Errorf("after the damage: %d %s", code, out)
	}
	kills := 0
	for wait := 100 * time.Millisecond; ; wait += 100 * time.Millisecond {
		cmd := exec.Command(binary(t), "--data-dir", dir, "check", "--repair")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(wait, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			break
		}
		kills++
	}
	if code, out := checked(t, dir); code != 0 || !strings.Contains(out, "nothing is wrong") {
		t.Fatalf("after the repair: %d %s", code, out)
	}
	t.Logf("%d kills", kills)

	p = launch(t, dir, "127.0.0.1:0")
	alice = newUser("alice", token(t, dir, "alice"), p.addr, tr)
	for id, want := range acknowledged {
		stored := history(ctx, t, alice, id)
		if len(stored) != len(want) {
			t.Fatalf("%s has %d messages, %d were acknowledged", id, len(stored), len(want))
		}
		for i, m := range stored {
			if m.GetMessageId() != want[i] {
				t.Errorf("message %d of %s is another", i+1, id)
			}
		}
		if _, err := alice.messages.SendMessage(ctx,
			&messagev1.SendMessageRequest{ChatId: id, Content: "and on"}); err != nil {
			t.Errorf("send after the repair: %v", err)
		}
	}
}

// What cannot be checked is said in one line, with a code of its own.
func TestCannotCheck(t *testing.T) {
	empty := t.TempDir()
	if code, stdout, stderr := run(t.Context(), nil, "--data-dir", empty, "check"); code != 2 ||
		!strings.Contains(stderr, "nothing to check") {
		t.Errorf("nothing: %d %s%s", code, stdout, stderr)
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
		t.Errorf("made %v %v", entries, err)
	}
	if code, _, stderr := run(t.Context(), nil, "--data-dir", empty, "check", "--mend"); code != 2 ||
		!strings.Contains(stderr, "--repair") {
		t.Errorf("a wrong flag: %d %s", code, stderr)
	}
	dir := t.TempDir()
	_, _, stop := greeted(t, "127.0.0.1:0", dir)
	stop()
	if err := os.Remove(filepath.Join(dir, "auth.key")); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := run(t.Context(), nil, "--data-dir", dir, "check"); code != 1 ||
		!strings.Contains(stdout, "key_missing") {
		t.Errorf("without a key: %d %s%s", code, stdout, stderr)
	}
}
