package app_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backup"
	authorize "github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

// command runs a command beside a running server, on its data directory.
func (p *process) command(t *testing.T, dir string, args ...string) (code int, out string) {
	t.Helper()
	args = append([]string{"--data-dir", dir, "--ops-address", opsOf(t, p)}, args...)
	code, stdout, stderr := run(t.Context(), nil, args...)
	return code, stdout + stderr
}

// A backup of a loaded server is a state that a kill could have left: what was acknowledged
// before it began is in it, once, and comes on Kafka, check finds nothing in it, and a server
// starts on what is restored, whether the backup is a directory or an archive.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	dir, to := t.TempDir(), t.TempDir()
	r := &benchFixture{b: t, ctx: t.Context(), dir: dir}
	r.p = launch(t, dir, "127.0.0.1:0")
	r.readKey()
	alice, bob := r.user("alice", false), r.user("bob", false)
	chats := []string{r.group(alice, "bob"), r.group(alice, "bob"), r.group(alice, "bob")}
	var acks acked
	acks.cond = sync.NewCond(&acks.mu)
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for w := range 6 {
		writing.Go(func() {
			for ctx.Err() == nil {
				req := &messagev1.SendMessageRequest{ChatId: chats[w%len(chats)], ClientMessageId: uuid.NewString(),
					Content: noise(2_000)}
				res, err := []*user{alice, bob}[w%2].messages.SendMessage(t.Context(), req)
				if err != nil {
					t.Error(err)
					return
				}
				acks.add(req, res)
			}
		})
	}
	var before [][]ack // what was acknowledged when a backup began, by backup
	targets := []string{to, to, filepath.Join(to, "one.tar.zst")}
	for _, target := range targets {
		acks.wait(500)
		var all []ack
		for _, id := range chats {
			all = append(all, acks.byChat(id)...)
		}
		before = append(before, all)
		if code, out := r.p.command(t, dir, "backup", target); code != 0 {
			t.Fatal(out)
		}
	}
	stop()
	writing.Wait()
	if _, err := os.Stat(filepath.Join(dir, backup.Snapshots)); !os.IsNotExist(err) {
		testkit.Eventually(t, "the snapshot is removed", func() bool {
			_, err := os.Stat(filepath.Join(dir, backup.Snapshots))
			return os.IsNotExist(err)
		})
	}
	r.p.kill()
	paths := append(testkit.Value(backup.All(to))(t), targets[2])
	if len(paths) != len(before) {
		t.Fatalf("%d backups", len(paths))
	}
	for i, path := range paths {
		restoreAndCheck(t, path, chats, before[i])
	}
}

// restoreAndCheck restores a backup, and checks it before and after a server has started on it.
func restoreAndCheck(t *testing.T, path string, chats []string, acks []ack) {
	t.Helper()
	if code, out, errs := run(t.Context(), nil, "check", path); code != 0 || !strings.Contains(out, "nothing is wrong") {
		t.Fatalf("%s: %s%s", path, out, errs)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if code, _, errs := run(t.Context(), nil, "--data-dir", dir, "restore", path); code != 0 {
		t.Fatal(errs)
	}
	p := launch(t, dir, "127.0.0.1:0")
	bob := newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, false))
	n := 0
	for _, id := range chats {
		stored := history(t.Context(), t, bob, id)
		checkHistory(t.Context(), t, bob, id, stored)
		var own []ack
		for _, a := range acks {
			if a.req.GetChatId() == id {
				own = append(own, a)
			}
		}
		checkAcks(t, own, stored)
		if _, err := bob.messages.SendMessage(t.Context(),
			&messagev1.SendMessageRequest{ChatId: id, Content: "after the restore"}); err != nil {
			t.Fatal(err)
		}
		stored = history(t.Context(), t, bob, id)
		checkLog(t.Context(), t, p.kafka, id, stored, asReader(t, dir)...)
		checkActivity(t, p, dir, id, stored)
		n += len(stored)
	}
	p.kill()
	if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "check"); code != 0 {
		t.Errorf("%s, restored and killed: %s%s", path, out, errs)
	}
	t.Logf("%s: %d messages, %d of them acknowledged before it began", filepath.Base(path), n, len(acks))
}

// There is one snapshot at a time; it is gone when its call ends, however that ends, and the
// next start removes that of a server that was killed.
func TestSnapshotGoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	snapshot := filepath.Join(dir, backup.Snapshots)
	there := func(want bool) func() bool {
		return func() bool {
			_, err := os.Stat(filepath.Join(snapshot, backup.ListFile))
			return want == (err == nil)
		}
	}
	target := filepath.Join(t.TempDir(), "backups")
	hold := func(ctx context.Context) {
		openSnapshot(ctx, t, p, dir)
		testkit.Eventually(t, "there is a snapshot", there(true))
		code, out := p.command(t, dir, "backup", target)
		if code == 0 || !strings.Contains(out, "another backup is being made") {
			t.Errorf("a second backup: %d %s", code, out)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	hold(ctx)
	cancel()
	testkit.Eventually(t, "the snapshot is removed", there(false))
	hold(t.Context())
	p.kill()
	if !there(true)() {
		t.Error("the kill has removed the snapshot")
	}
	p = launch(t, dir, p.addr)
	if !there(false)() {
		t.Error("the start has left the snapshot of a server that was killed")
	}
	if code, out := p.command(t, dir, "backup", target); code != 0 {
		t.Error(out)
	}
	p.kill()
	// The same without a server.
	code, out, errs := run(t.Context(), nil, "--data-dir", dir, "backup", target)
	if code != 0 || !strings.Contains(out, "are new") {
		t.Errorf("%s%s", out, errs)
	}
	for _, path := range testkit.Value(backup.All(target))(t) {
		restoreAndCheck(t, path, nil, nil)
	}
}

// The page on backups says what works: its lines are run in their order, beside a server that
// runs and one that does not. Those about S3 are for TestBackupS3Page.
func TestBackupPage(t *testing.T) {
	t.Parallel()
	home, backups := t.TempDir(), filepath.Join(t.TempDir(), "parley")
	testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, "server")))
	data := filepath.Join(home, ".parley")
	p := launch(t, data, "127.0.0.1:0")
	shell := func(code string) string {
		return runShell(t, home, opsOf(t, p), strings.ReplaceAll(code, "/var/backups/parley", backups))
	}
	said := ""
	for _, code := range pageCode(t, "backup.md") {
		server, starts := strings.CutSuffix(code, "./server\n") // which would not end
		switch {
		case strings.Contains(code, "s3://"):
		case strings.HasPrefix(code, "./server --backup-dir"):
			p.kill()
			args := strings.Fields(strings.ReplaceAll(code, "/var/backups/parley", backups+"/scheduled"))[1:]
			p = launch(t, data, "127.0.0.1:0", args...)
			testkit.Eventually(t, "the server makes a backup", func() bool {
				_, err := backup.Find(t.Context(), backups+"/scheduled")
				return err == nil
			})
			said += "scheduled "
		case starts:
			p.signaled(t, os.Interrupt)
			said += shell(server)
			p = launch(t, data, "127.0.0.1:0")
		default:
			said += shell(code)
		}
	}
	for _, want := range []string{"are new", "nothing is wrong", "is restored into", "scheduled"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing of the page said %q: %s", want, said)
		}
	}
}

// pageCode are the blocks of a page that a shell runs.
func pageCode(t *testing.T, page string) []string {
	t.Helper()
	return shellBlocks(string(testkit.Value(os.ReadFile("../../docs/" + page))(t)))
}

// runShell runs the lines of a page in a directory that has the server, and returns what they say.
func runShell(t *testing.T, home, ops, code string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", code)
	cmd.Dir, cmd.Env = home, append(os.Environ(), "PARLEY_OPS_ADDRESS="+ops)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", code, err, out)
	}
	return string(out)
}

// openSnapshot has the server show a snapshot until ctx ends.
func openSnapshot(ctx context.Context, t *testing.T, p *process, dir string) {
	t.Helper()
	key := testkit.Value(auth.ReadKey(filepath.Join(dir, auth.KeyFile)))(t)
	cfg := opsctl.Config{Key: func() (*auth.Key, error) { return key, nil }}
	hc, url := cfg.HTTP(opsOf(t, p))
	service := opsv1connect.NewBackupServiceClient(hc, url, connect.WithInterceptors(authorize.New(cfg.Tokens("tester"))))
	stream := testkit.Value(service.TakeSnapshot(ctx, &opsv1.TakeSnapshotRequest{}))(t)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
}

// What cannot work is refused in one line, and changes nothing.
func TestBackupMistakes(t *testing.T) {
	t.Parallel()
	empty, dir, to := t.TempDir(), t.TempDir(), t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	p.signaled(t, os.Interrupt)
	if code, out, errs := run(t.Context(), nil, "--data-dir", dir, "backup", to); code != 0 {
		t.Fatal(out, errs)
	}
	distributed := []string{"--store", "dynamodb", "--redis", "redis://127.0.0.1:1", "--key-file",
		filepath.Join(dir, auth.KeyFile)}
	half := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(half, backup.Unfinished), 0o700))
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{1, "there is no store", []string{"--data-dir", empty, "backup", to}},
		{2, "one directory", []string{"backup"}},
		{2, "--keep of 0 or more", []string{"backup", to, "--keep", "-1"}},
		{1, "is not empty", []string{"--data-dir", dir, "restore", to}},
		{1, "there is no backup", []string{"--data-dir", empty, "restore", empty}},
		{1, "no such file", []string{"--data-dir", empty, "restore", filepath.Join(empty, "x.tar.zst")}},
		{2, "there is no backup", []string{"check", empty}},
		{2, "--repair or one backup", []string{"check", "--repair", to}},
		{1, "a restore into", []string{"--data-dir", half, "--listen", "127.0.0.1:0"}},
		{1, "in DynamoDB", append(distributed, "backup", to)}, {1, "in DynamoDB", append(distributed, "restore", to)},
		{2, "is for a data directory", append(distributed, "--backup-dir", to)},
		{2, "is in the data directory", []string{"--data-dir", dir, "--backup-dir", filepath.Join(dir, "backups")}},
		{2, "no address of S3", []string{"--data-dir", dir, "--backup-dir", "s3://my bucket"}},
		{1, "names one file", []string{"--data-dir", dir, "backup", "s3://bucket/x.tar.zst"}},
		{1, "no address of S3", []string{"--data-dir", empty, "restore", "s3://"}},
		{1, "is in the data directory", []string{"--data-dir", dir, "backup", filepath.Join(dir, "x.tar.zst")}},
	} {
		code, out, errs := run(t.Context(), nil, c.args...)
		if code != c.code || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%v: %d %s%s", c.args, code, out, errs)
		}
	}
	if left := testkit.Value(os.ReadDir(empty))(t); len(left) > 0 {
		t.Errorf("%v", left)
	}
}
