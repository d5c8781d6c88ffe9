package adminctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/adminctl"
	"github.com/parley-chat/parley/workers/ops/opsctl"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

// program is a program with the commands of operators.
type program struct {
	t *testing.T
	r *opstest.Fixture
}

// run runs a command line, and returns what it prints.
func (p program) run(line string, more ...string) (out, errs string, err error) {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	config := func() (opsctl.Config, error) {
		return opsctl.Config{Program: "workers", Address: p.r.Addr, Operator: "ada", Stdout: &stdout, Stderr: &stderr,
			Key: func() (*auth.Key, error) { return p.r.Key, nil }}, nil
	}
	root := &cobra.Command{Use: "workers", SilenceErrors: true, SilenceUsage: true, TraverseChildren: true}
	opsctl.AddTo(root, "commands for operators:", func(ctx context.Context, args []string) error {
		cfg, _ := config()
		return cmdline.ExitCode(opsctl.Run(ctx, cfg, args))
	})
	adminctl.AddTo(root, config)
	root.SetArgs(append(strings.Fields(line), more...))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err = root.ExecuteContext(p.t.Context())
	return stdout.String(), stderr.String(), err
}

// does runs a command that succeeds, and looks for parts of what it prints.
func (p program) does(line string, parts ...string) string {
	p.t.Helper()
	out, errs, err := p.run(line)
	if err != nil {
		p.t.Fatalf("%s: %v\n%s%s", line, err, out, errs)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			p.t.Errorf("%s: no %q in\n%s", line, part, out)
		}
	}
	return out
}

// fails runs a command that does not.
func (p program) fails(line, why string) {
	p.t.Helper()
	out, _, err := p.run(line)
	if err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "\n") {
		p.t.Errorf("%s: %v, not %q\n%s", line, err, why, out)
	}
}

// Every command does what it says, nothing without --execute, and says what is wrong in one
// line.
func TestCommands(t *testing.T) {
	p := program{t, opstest.New(t, nil)}
	chat := p.r.Chat(3)
	p.r.Identity.SignIn("alice", "ses_1")
	p.r.Identity.SignIn("alice", "ses_2")
	const dry = "nothing was changed; add --execute to do it"

	p.does("users show alice", "alice", "active", "chats       1")
	p.does("users suspend alice --reason spam", "active", dry)
	p.does("sessions end alice ses_1 --reason stolen", dry)
	p.does("sessions end-all alice --reason stolen", "2 sessions", dry)
	p.does("services create --description bot --scopes messages.send,users.write", "messages.send,users.write", dry)
	if steps := p.r.Identity.Steps(); len(steps) > 0 {
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
	p.fails("chats messages "+chat, "reason")

	p.does("services create --description bot --scopes messages.send --execute", "svc-0", "made: services add-key svc-0")
	p.does("services add-key svc-0", dry)
	out, errs, err := p.run("services add-key svc-0 --expires-in 720h --execute")
	if out != opstest.ServiceSecret+"\n" || !strings.Contains(errs, "key key_0, ends 20") || err != nil {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	p.does("services show svc-0", "active", "key_0")
	p.does("services revoke-key svc-0 key_0 --reason stolen --execute", "revoked")
	p.does("services show svc-0", "revoked")
	p.does("services set-scopes svc-0 --scopes users.write", dry)
	p.does("services set-scopes svc-0 --scopes users.write --execute", "users.write", "changed")
	p.does("services create --id shop --description shop --scopes messages.send --execute", "shop")
	p.fails("services create --id shop --description shop --scopes messages.send --execute",
		"there is such a service account")
	out, _, _ = p.run("services list --limit 1")
	_, token, _ := strings.Cut(out, "--page-token ")
	if !strings.Contains(out, "shop") || strings.Contains(out, "svc-0") {
		t.Error(out)
	}
	p.does("services list --limit 1 --page-token "+token, "svc-0")
	p.does("services disable svc-0 --reason unused --execute", "disabled")
	p.does("services list", "svc-0", "disabled", "bot")
	p.fails("services add-key svc-0 --execute", "the service account has ended")
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

	p.fails("users show nobody", "no such user")
	p.fails("users show", "users show takes USER")
	p.fails("sessions end alice", "sessions end takes USER SESSION")
	p.fails("audit list x", "audit list takes no arguments")
	p.fails("audit list --kind x", "must be call or event")
	p.fails("audit list --since x", "must be a time such as")
	p.fails("audit export", "reason")
	p.fails("users suspend alice --execute", "reason")
	p.fails("users show alice --ops-address x", "ops-address must be host:port")
	p.fails("users show alice --ops-address 127.0.0.1:1", "no server answers operators at 127.0.0.1:1")
	p.fails("services add-key svc-0 --expires-in=-1h", "must not be negative")
}

// A token of a lesser role says so, and where no token can be had that is said, too.
func TestTokens(t *testing.T) {
	r := opstest.New(t, nil)
	testkit.Must(t, r.Chats.EnsureUser(t.Context(), "alice"))
	var out bytes.Buffer
	cfg := opsctl.Config{Program: "workers", Address: r.Addr, Stdout: &out, Stderr: &out,
		Key: func() (*auth.Key, error) { return nil, errors.New("no such file") }}
	run := func(args ...string) error {
		root := &cobra.Command{Use: "workers", SilenceErrors: true, SilenceUsage: true, TraverseChildren: true}
		opsctl.AddTo(root, "", func(context.Context, []string) error { return nil })
		adminctl.AddTo(root, func() (opsctl.Config, error) { return cfg, nil })
		root.SetArgs(args)
		return root.ExecuteContext(t.Context())
	}
	if err := run("users", "show", "alice"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	var issued bytes.Buffer
	withKey := opsctl.Config{Address: r.Addr, Stdout: &issued, Stderr: &issued,
		Key: func() (*auth.Key, error) { return r.Key, nil }}
	if code := opsctl.Run(t.Context(), withKey, strings.Fields("operators token --role viewer bob")); code != 0 {
		t.Fatal(issued.String())
	}
	cfg.Token = strings.TrimSpace(issued.String())
	testkit.Must(t, run("users", "show", "alice"))
	err := run("users", "suspend", "alice", "--reason", "spam", "--execute")
	if err == nil || err.Error() != "this call needs the role moderator, and the token has viewer" {
		t.Error(err)
	}
}

// Each line of the page on administration is a command that there is, with its flags.
func TestPage(t *testing.T) {
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
		root := &cobra.Command{Use: "server", TraverseChildren: true}
		opsctl.AddTo(root, "", func(context.Context, []string) error { return nil })
		adminctl.AddTo(root, nil)
		c, args, err := root.Find(words[1:])
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
