package app_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/move"
)

// otherHistory is what a server logs of a client that was shown what the store does not have.
const otherHistory = "a client was shown what the store does not have"

// The page on moves says what works: its lines are run in their order, under devices that stay signed in, and
// that notice nothing but a pause. The events come on the new server's Kafka, and check finds nothing. What the
// old server does after the export is in no history of the new one.
func TestMovePage(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	r := &restorer{t: t, rng: rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 3)),
		dir: filepath.Join(home, ".parley")}
	r.p = launch(t, r.dir, "127.0.0.1:0")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := r.p.addr
	alice := newUser("alice", token(t, r.dir, "alice"), addr, newTransport(t, false))
	r.reader = newUser("bob", token(t, r.dir, "bob"), addr, newTransport(t, false))
	h := &benchFixture{b: t, ctx: ctx, dir: r.dir}
	r.chats = []string{h.group(alice, "bob"), h.group(alice, "bob")}
	for _, name := range []string{"alice", "alice", "bob"} {
		r.devices = append(r.devices, newGoDevice(t, token(t, r.dir, name), addr, name, r.chats))
	}
	r.burst()
	r.compare(ctx, 0)
	progress()
	testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, "server")))
	exports := filepath.Join(t.TempDir(), "moves")
	testkit.Must(t, os.Mkdir(exports, 0o700))
	page := string(testkit.Value(os.ReadFile("../../docs/move.md"))(t))
	said := ""
	for _, code := range shellBlocks(page) {
		code, starts := strings.CutSuffix(code, "./server --data-dir moved\n") // which would not end
		if strings.HasPrefix(code, "./server export /") {
			r.burst() // some of it is on its way
			r.p.signaled(t, os.Interrupt)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(code, "/var/moves", exports))
		cmd.Dir, cmd.Env = home, os.Environ()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", code, err, out)
		}
		said += string(out)
		if starts {
			r.dir = filepath.Join(home, "moved")
			r.p = launch(t, r.dir, addr)
			progress()
			r.compare(ctx, 1)
			r.burst()
			r.compare(ctx, 2)
		}
	}
	if n := strings.Count(said, " exported "); n != 2 || strings.Count(said, " imported ") != 2 {
		t.Errorf("the page exported %d times: %s", n, said)
	}
	if strings.Contains(r.p.log.String(), otherHistory) {
		t.Error("a device started over after the move")
	}
	for _, id := range r.chats {
		stored := history(ctx, t, r.reader, id)
		checkHistory(ctx, t, r.reader, id, stored)
		checkLog(ctx, t, r.p.kafka, id, stored, asReader(t, r.dir)...)
	}
	r.p.signaled(t, os.Interrupt)
	progress()
	for _, dir := range []string{r.dir, filepath.Join(home, "piped")} {
		if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "check"); code != 0 {
			t.Errorf("%s: %s%s", dir, out, errs)
		}
	}
	old := launch(t, filepath.Join(home, ".parley"), addr)
	_, err := call(ctx, alice.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: r.chats[0], Content: "lost"})
	testkit.Must(t, err)
	testkit.Eventually(t, "a device has met the old server", func() bool {
		return strings.Contains(old.log.String(), otherHistory)
	})
	old.signaled(t, os.Interrupt)
	r.p = launch(t, r.dir, addr)
	progress()
	r.compare(ctx, 3)
}

// What a move cannot do is refused in one line, and changes nothing.
func TestMoveMistakes(t *testing.T) {
	t.Parallel()
	dir, empty := t.TempDir(), filepath.Join(t.TempDir(), "empty")
	p := launch(t, dir, "127.0.0.1:0")
	file := filepath.Join(t.TempDir(), "file")
	refuse := func(want int, text string, args ...string) {
		t.Helper()
		code, out, errs := run(t.Context(), nil, args...)
		if code != want || !strings.Contains(errs, text) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%v: %d %s%s", args, code, out, errs)
		}
	}
	refuse(1, "stop the server", "--data-dir", dir, "export", file)
	p.signaled(t, os.Interrupt)
	if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "export", file); code != 0 {
		t.Fatal(out, errs)
	}
	export := testkit.Value(os.ReadFile(file))(t)
	half := filepath.Join(t.TempDir(), "half")
	testkit.Must(t, os.WriteFile(half, export[:len(export)/2], 0o600))
	refuse(2, "one file", "export")
	refuse(2, "one file", "import")
	refuse(2, "one file", "export", "--cancel", file)
	refuse(1, "start the server", "--data-dir", dir, "export", "--cancel")
	refuse(1, "is there already", "--data-dir", dir, "export", file)
	refuse(1, "start the server there first", "--data-dir", empty, "export", half+"2")
	refuse(1, "is not empty", "--data-dir", dir, "import", file)
	refuse(1, "no such file", "--data-dir", empty, "import", file+"x")
	refuse(1, "is no export", "--data-dir", empty, "import", filepath.Join(dir, "auth.key"))
	refuse(1, move.ErrCutOff.Error(), "--data-dir", empty, "import", half)
	refuse(1, "an import into", "--data-dir", empty, "--listen", "127.0.0.1:0")
	code, out, errs := run(t.Context(), nil, "--data-dir", empty, "import", file)
	if code != 0 || !strings.Contains(errs, "continued") {
		t.Error(out, errs)
	}
}
