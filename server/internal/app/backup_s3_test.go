package app_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// storage has programs find a server of S3, and returns a prefix of its own in a bucket there.
func storage(t *testing.T) (address string) {
	t.Helper()
	at := os.Getenv("PARLEY_TEST_S3")
	if at == "" {
		t.Skip("not run: PARLEY_TEST_S3 is not set")
	}
	u := testkit.Value(url.Parse(at))(t)
	secret, _ := u.User.Password()
	t.Setenv("AWS_ACCESS_KEY_ID", u.User.Username())
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	u.User = nil
	t.Setenv("AWS_ENDPOINT_URL", u.String())
	return "s3://parley/" + uuid.NewString()
}

// A server makes backups in S3 by itself and by the command. The second has what the first does not, one of both is
// restored with all messages, the other one is checked, and --keep removes the older ones.
func TestBackupS3(t *testing.T) {
	to, dir := storage(t), t.TempDir()
	r := &benchFixture{b: t, ctx: t.Context(), dir: dir}
	r.p = launch(t, dir, "127.0.0.1:0", "--backup-dir", to+"/scheduled")
	r.readKey()
	alice := r.user("alice", false)
	chats := []string{r.group(alice, "bob")}
	var acks []ack
	send := func() {
		for range 200 {
			req := &messagev1.SendMessageRequest{ChatId: chats[0], ClientMessageId: uuid.NewString(), Content: noise(2_000)}
			res := testkit.Value(alice.messages.SendMessage(t.Context(), req))(t)
			acks = append(acks, ack{req: req, res: res})
		}
	}
	send()
	first := r.p.backUp(t, dir, to)
	before := acks
	send()
	second := r.p.backUp(t, dir, to)
	if !strings.HasPrefix(second, to+"/backups/") || second <= first {
		t.Errorf("%s after %s", second, first)
	}
	testkit.Eventually(t, "the server makes a backup", func() bool {
		code, out, _ := run(t.Context(), nil, "check", to+"/scheduled")
		return code == 0 && strings.Contains(out, "nothing is wrong")
	})
	r.p.kill()
	restoreAndCheck(t, first, chats, before)
	restoreAndCheck(t, to, chats, acks) // the newest of them
	if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "backup", to, "--keep", "1"); code != 0 ||
		!strings.Contains(out, "2 older backups removed") {
		t.Error(out, errs)
	}
	code, _, errs := run(t.Context(), nil, "--data-dir", filepath.Join(t.TempDir(), "x"), "restore", first)
	if code != 1 || !strings.Contains(errs, "there is no backup") {
		t.Errorf("a removed backup: %d %s", code, errs)
	}
}

// backUp makes a backup and returns where it is.
func (p *process) backUp(t *testing.T, dir, to string) string {
	t.Helper()
	code, out := p.command(t, dir, "backup", to)
	if code != 0 {
		t.Fatal(out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	path, _, _ := strings.Cut(lines[len(lines)-1], ": ")
	return path
}

// What S3 refuses is one line, for the command and in the log of a server, whose metrics say that a backup is missing.
func TestBackupS3Refusals(t *testing.T) {
	to, dir := storage(t), t.TempDir()
	secret := os.Getenv("AWS_SECRET_ACCESS_KEY")
	nowhere := "s3://another-bucket/parley"
	p := launch(t, dir, "127.0.0.1:0", "--backup-dir", nowhere)
	testkit.Eventually(t, "the server says why", func() bool { return strings.Contains(p.log.String(), "no such bucket") })
	testkit.Eventually(t, "a metric counts it", func() bool {
		return scrape(t, p.metricsAddr(), "parley_backup_failed_total") == 1
	})
	p.signaled(t, os.Interrupt)
	for _, args := range [][]string{{"backup", nowhere}, {"restore", nowhere}, {"check", nowhere}} {
		data := dir
		if args[0] == "restore" {
			data = filepath.Join(dir, "none")
		}
		code, out, errs := run(t.Context(), nil, append([]string{"--data-dir", data}, args...)...)
		if code == 0 || !strings.Contains(errs, "there is no such bucket") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: %d %s%s", args, code, out, errs)
		}
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "another secret")
	code, _, errs := run(t.Context(), nil, "--data-dir", dir, "backup", to)
	if code != 1 || !strings.Contains(errs, "the credentials are wrong") || strings.Contains(errs, "another secret") {
		t.Errorf("%d %s", code, errs)
	}
	if strings.Contains(p.log.String(), secret) {
		t.Error("the log has a secret")
	}
	if _, err := os.Stat(filepath.Join(dir, auth.KeyFile)); err != nil {
		t.Error(err)
	}
}

// The lines of the page on backups that are about S3 work.
func TestBackupS3Page(t *testing.T) {
	to := storage(t)
	home := t.TempDir()
	testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, "server")))
	p := launch(t, filepath.Join(home, ".parley"), "127.0.0.1:0")
	said := ""
	for _, code := range pageCode(t, "backup.md") {
		if strings.Contains(code, "s3://") {
			// versitygw has one region.
			code = strings.ReplaceAll(strings.ReplaceAll(code, "s3://my-backups/parley", to), "eu-central-1", "us-east-1")
			said += runShell(t, home, opsOf(t, p), code)
		}
	}
	for _, want := range []string{"are new", "nothing is wrong"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing of the page said %q: %s", want, said)
		}
	}
}
