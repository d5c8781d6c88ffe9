package app_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/dynamo"
	engine "github.com/parley-chat/parley/server/store/embedded"
)

// codeBlocks are the blocks of a language in a part of a page, in their order.
func codeBlocks(part, language string) (blocks []string) {
	for i, block := range strings.Split(part, "```") {
		if code, ok := strings.CutPrefix(block, language+"\n"); ok && i%2 == 1 {
			blocks = append(blocks, code)
		}
	}
	return blocks
}

// shellBlocks are the lines to type of a part of a page.
func shellBlocks(part string) []string { return codeBlocks(part, "sh") }

// upgradePage is what the page on upgrades says of one server, and of many.
func upgradePage(t *testing.T) (one, many string) {
	t.Helper()
	page := string(testkit.Value(os.ReadFile("../../docs/upgrade.md"))(t))
	one, many, ok := strings.Cut(page, "## Many servers")
	if !ok || !strings.Contains(one, engine.ErrFormat.Error()) || !strings.Contains(many, dynamo.ErrFormat.Error()) {
		t.Fatal("the page does not say how a downgrade is refused")
	}
	return one, many
}

// The page on upgrades says what works for one server: its lines are run in their order. Between the
// upgrade and the way back, the data get a format that the program does not know, as a newer version
// leaves it, and the refusal is the page's.
func TestUpgradePage(t *testing.T) {
	t.Parallel()
	page, _ := upgradePage(t)
	home, backups := t.TempDir(), filepath.Join(t.TempDir(), "parley")
	for _, name := range []string{"server", "server.new"} {
		testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, name)))
	}
	data := filepath.Join(home, ".parley")
	p := launch(t, data, "127.0.0.1:0")
	bob := newUser("bob", token(t, data, "bob"), p.addr, newTransport(t, false))
	alice := newUser("alice", token(t, data, "alice"), p.addr, newTransport(t, false))
	id := (&benchFixture{b: t, ctx: t.Context(), dir: data}).group(alice, "bob")
	said, starts := "", 0
	for _, code := range shellBlocks(page) {
		code, starting := strings.CutSuffix(code, "./server\n") // which would not end
		if starting {
			p.signaled(t, os.Interrupt)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", strings.ReplaceAll(code, "/var/backups/parley", backups))
		cmd.Dir, cmd.Env = home, append(os.Environ(), "PARLEY_OPS_ADDRESS="+opsOf(t, p))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", code, err, out)
		}
		if said += string(out); !starting {
			continue
		}
		p = launch(t, data, p.addr)
		if starts++; starts > 1 {
			continue
		}
		p.signaled(t, os.Interrupt)
		format := filepath.Join(data, "FORMAT")
		was := testkit.Value(os.ReadFile(format))(t)
		testkit.Must(t, os.WriteFile(format, []byte("parley 4 4\n"), 0o600))
		refused, err := exec.CommandContext(t.Context(), binary(t), "--data-dir", data).CombinedOutput()
		_, block, _ := strings.Cut(page, "```text\n")
		line, _, _ := strings.Cut(block, "\n")
		if err == nil || !strings.Contains(string(refused), line) {
			t.Errorf("the page says %q, the program %q", line, refused)
		}
		if now := testkit.Value(os.ReadFile(format))(t); string(now) != "parley 4 4\n" {
			t.Errorf("the refused program left %q", now)
		}
		testkit.Must(t, os.WriteFile(format, was, 0o600))
		p = launch(t, data, p.addr) // the newer version again
	}
	if starts != 2 || !strings.Contains(said, "are new") || !strings.Contains(said, "is restored into") {
		t.Errorf("%d starts: %s", starts, said)
	}
	if stored := history(t.Context(), t, bob, id); len(stored) != 0 {
		t.Errorf("the chat has %v", stored)
	}
}
