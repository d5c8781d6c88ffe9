package opsctl_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// does runs a command that succeeds, and looks for parts of what it prints.
func (c *cli) does(line string, parts ...string) string {
	c.t.Helper()
	out, _ := c.run(0, line)
	c.has(out, parts...)
	return out
}

// fails runs a command that does not.
func (c *cli) fails(code int, line, why string) {
	c.t.Helper()
	_, errs := c.run(code, line)
	if c.has(errs, why); strings.Count(errs, "\n") != 1 {
		c.t.Errorf("%s: %s", line, errs)
	}
}

// Every command does what it says, nothing without --execute, and says what is wrong in one
// line.
func TestCommands(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	p := commands(t, r)
	chat := r.Chat(3)
	r.Identity.SignIn("alice", "ses_1")
	r.Identity.SignIn("alice", "ses_2")
	const dry = "nothing was changed; add --execute to do it"

	p.does("users show alice", "alice", "active", "chats       1")
	p.does("users suspend alice --reason spam", "active", dry)
	p.does("sessions end alice ses_1 --reason stolen", dry)
	p.does("sessions end-all alice --reason stolen", "2 sessions", dry)
	p.does("services create --description bot --scopes messages.send,users.write", "messages.send,users.write", dry)
	if steps := r.Identity.Steps(); len(steps) > 0 {
		t.Fatalf("dry runs did %v", steps)
	}
	p.does("sessions list alice", "ses_1", "a phone")
	p.does("sessions end alice ses_1 --reason stolen --execute", "ended")
	p.does("users suspend alice --reason spam --execute", "suspended: tokens are refused everywhere within 5s")
	p.does("users show alice", "suspended")
	p.does("users restore alice --reason mistake --execute", "active", "the user signs in again")
	p.does("sessions end-all alice --reason stolen --execute", "0 sessions", "ended")

	p.does("chats show "+chat, "group", "by alice", "members   2", "messages  3")
	p.does("chats members "+chat, "alice", "owner", "bob", "member")
	read := p.does("chats messages --reason case-17 --limit 2 "+chat, opstest.Secret+"2")
	if strings.Count(read, "\n") != 2 {
		t.Error(read)
	}
	p.fails(1, "chats messages "+chat, "reason")

	p.does("services create --description bot --scopes messages.send --execute", "svc-0", "made: services add-key svc-0")
	p.does("services add-key svc-0", dry)
	out, errs := p.run(0, "services add-key svc-0 --expires-in 720h --execute")
	if out != opstest.ServiceSecret+"\n" || !strings.Contains(errs, "key key_0, ends 20") {
		t.Errorf("%q, %q", out, errs)
	}
	p.does("services show svc-0", "active", "key_0")
	p.does("services revoke-key svc-0 key_0 --reason stolen --execute", "revoked")
	p.does("services show svc-0", "revoked")
	p.does("services set-scopes svc-0 --scopes users.write", dry)
	p.does("services set-scopes svc-0 --scopes users.write --execute", "users.write", "changed")
	p.does("services create --id shop --description shop --scopes messages.send --execute", "shop")
	p.fails(1, "services create --id shop --description shop --scopes messages.send --execute",
		"there is such a service account")
	out, _ = p.run(0, "services list --limit 1")
	_, token, _ := strings.Cut(out, "--page-token ")
	if !strings.Contains(out, "shop") || strings.Contains(out, "svc-0") {
		t.Error(out)
	}
	p.does("services list --limit 1 --page-token "+token, "svc-0")
	p.does("services disable svc-0 --reason unused --execute", "disabled")
	p.does("services list", "svc-0", "disabled", "bot")
	p.fails(1, "services add-key svc-0 --execute", "the service account has ended")
	p.does("limits list", "cannot be reached", "otp_identifier", "10 in 1d", "is refused")
	p.does("limits show send alice", "left     0", "1.5s")

	p.does("audit", "SuspendUser") // what operators did, as ever
	p.does("audit --call SuspendUser", "spam")
	p.does("audit list --to user/alice --since 1h", "SuspendUser", "EndAllSessions", "user/alice", `"reason":"spam"`)
	if out := p.does("audit list --kind event --by ada"); strings.Contains(out, "SuspendUser") {
		t.Error(out)
	}
	lines := strings.Split(strings.TrimSpace(p.does("audit export --by ada --reason yearly")), "\n")
	for _, l := range lines {
		var one struct{ Actor, Action string }
		if err := json.Unmarshal([]byte(l), &one); err != nil || one.Actor != "ada" || one.Action == "" {
			t.Errorf("%s: %v", l, err)
		}
	}
	if len(lines) < 10 {
		t.Errorf("%d lines", len(lines))
	}
	if out := p.does("users show --json alice"); !json.Valid([]byte(out)) {
		t.Error(out)
	}

	p.fails(1, "users show nobody", "no such user")
	p.fails(2, "users show", "users show takes USER")
	p.fails(2, "sessions end alice", "sessions end takes USER SESSION")
	p.fails(2, "audit list x", "audit list takes no arguments")
	p.fails(2, "audit list --kind x", "must be call or event")
	p.fails(2, "audit list --since x", "must be a time such as")
	p.fails(1, "audit export", "reason")
	p.fails(1, "users suspend alice --execute", "reason")
	p.fails(2, "users show alice --ops-address x", "ops-address must be host:port")
	p.fails(1, "users show alice --ops-address 127.0.0.1:1", "no server answers operators at 127.0.0.1:1")
	p.fails(2, "services add-key svc-0 --expires-in=-1h", "must not be negative")
}

// A token of a lesser role says so, and where no token can be had that is said, too.
func TestTokens(t *testing.T) {
	t.Parallel()
	r := opstest.New(t, nil)
	testkit.Must(t, r.Chats.EnsureUser(t.Context(), "alice"))
	c := commands(t, r)
	issued, _ := c.run(0, "operators token --role viewer bob")
	c.cfg.Key = func() (*auth.Key, error) { return nil, errors.New("no such file") }
	c.fails(1, "users show alice", "no such file")
	c.cfg.Token = strings.TrimSpace(issued)
	c.does("users show alice")
	c.fails(1, "users suspend alice --reason spam --execute",
		"workers: the role is too small: this call needs the role moderator, and the token has viewer\n")
}

// Each line of the page on administration is a command that there is, with its flags.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../server/docs/administration.md")
	testkit.Must(t, err)
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok {
		t.Fatal("the page shows no commands")
	}
	quoted := regexp.MustCompile(`"[^"]*"|>\S+`)
	n := 0
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(line, "  #")
		words := strings.Fields(quoted.ReplaceAllStringFunc(line, func(s string) string {
			if s[0] == '>' {
				return ""
			}
			return "text"
		}))
		c, args, err := unreachable(t).program().Root.Find(words[1:])
		if err != nil || c.HasSubCommands() {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if err := c.ParseFlags(args); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		_, want, _ := strings.Cut(c.Use, " ")
		if got := c.Flags().Args(); len(got) != len(strings.Fields(want)) {
			t.Errorf("%s: %q where %q is wanted", line, got, want)
		}
		n++
	}
	if n < 17 {
		t.Errorf("%d commands", n)
	}
}
