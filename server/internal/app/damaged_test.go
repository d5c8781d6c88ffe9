package app_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// harms are kinds of damage to a file.
var harms = []struct {
	name string
	do   func(path string) error
}{
	{"halved", func(path string) error { return rewrite(path, func(b []byte) []byte { return b[:len(b)/2] }) }},
	{"a byte cut off", func(path string) error {
		return rewrite(path, func(b []byte) []byte { return b[:len(b)-1] })
	}},
	{"a bit flipped", func(path string) error {
		return rewrite(path, func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
	}},
	{"4 KB zeroed", func(path string) error {
		return rewrite(path, func(b []byte) []byte {
			at := len(b) / 2 &^ 4095
			clear(b[at:min(len(b), at+4096)])
			return b
		})
	}},
	{"emptied", func(path string) error { return os.Truncate(path, 0) }},
	{"removed", os.Remove},
}

// rewrite changes the content of a file, up to the zeros behind it that were allocated ahead.
func rewrite(path string, f func([]byte) []byte) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	n := len(strings.TrimRight(string(b), "\x00"))
	if n == 0 {
		return errEmptyFile
	}
	return os.WriteFile(path, append(f(b[:n:n]), b[n:]...), 0o600)
}

var errEmptyFile = errors.New("the file is empty")

// kindsOfFiles are the files of a data directory that may be damaged, by patterns; of several the last
// with content is.
var kindsOfFiles = []string{
	"store/*.log", "store/*.sst", "store/MANIFEST-*", "store/marker.manifest.*", "store/marker.format-version.*",
	"store/OPTIONS-*", "FORMAT", "SEAL", "auth.key",
}

// damagedInstallation is the data directory of a server that has ended, and what it acknowledged.
type damagedInstallation struct {
	dir    string
	backup string // of all that was acknowledged
	chats  []string
	acks   map[string][]*messagev1.SendMessageResponse
	text   string // of one message in the middle of a chat
}

// flipMessage flips bits in a table wherever that message is: in blocks that no start reads.
func (d *damagedInstallation) flipMessage(b []byte) []byte {
	part := []byte(d.text[400:424])
	for at := 0; ; at++ {
		i := bytes.Index(b[at:], part)
		if i < 0 {
			return b
		}
		at += i
		b[at] ^= 4
	}
}

func newDamaged(t *testing.T) *damagedInstallation {
	t.Helper()
	d := &damagedInstallation{dir: t.TempDir(), acks: map[string][]*messagev1.SendMessageResponse{}}
	r := &benchFixture{b: t, ctx: t.Context(), dir: d.dir}
	r.p = launch(t, d.dir, "127.0.0.1:0")
	r.readKey()
	alice := r.user("alice", false)
	r.user("bob", false)
	d.chats = []string{r.group(alice, "bob"), r.group(alice, "bob"), r.group(alice, "bob")}
	backups := t.TempDir()
	for round := range 3 {
		for i := range 60 {
			id := d.chats[i%len(d.chats)]
			text := fmt.Sprint(round, i, noise(1_000))
			if round == 1 && i == 30 {
				d.text = text
			}
			res, err := alice.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: text})
			testkit.Must(t, err)
			d.acks[id] = append(d.acks[id], res)
		}
		if round < 2 { // what is in memory becomes a table file
			if code, out := r.p.command(t, d.dir, "backup", backups); code != 0 {
				t.Fatal(out)
			}
		}
	}
	r.p.signaled(t, os.Interrupt) // which seals: the last second before a kill is not covered
	d.backup = t.TempDir()
	if code, out, errs := run(t.Context(), nil, "--data-dir", d.dir, "backup", d.backup); code != 0 {
		t.Fatal(out, errs)
	}
	return d
}

// file finds the file of a kind: the last that has content.
func (d *damagedInstallation) file(t *testing.T, dir, pattern string) string {
	t.Helper()
	paths := testkit.Value(filepath.Glob(filepath.Join(dir, pattern)))(t)
	slices.Sort(paths)
	for _, p := range slices.Backward(paths) {
		b := testkit.Value(os.ReadFile(p))(t)
		if strings.Trim(string(b), "\x00") != "" || strings.Contains(pattern, "marker") {
			return p
		}
	}
	t.Fatalf("there is no %s in %s", pattern, dir)
	return ""
}

// attempt starts the server and says how that ends: what it says if it does not start, or how much is
// there.
func (d *damagedInstallation) attempt(t *testing.T, dir string, args ...string) (started bool, outcome string) {
	t.Helper()
	args = append([]string{"--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0",
		"--data-dir", dir}, args...)
	p := &process{cmd: exec.Command(binary(t), args...), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.log
	testkit.Must(t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.gone) }()
	defer p.kill()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case <-p.gone:
			lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
			return false, lines[len(lines)-1]
		case <-deadline:
			return false, "HANGS: " + p.log.tail(300)
		case <-time.After(10 * time.Millisecond):
		}
		if m := listening.FindStringSubmatch(p.said.String()); m != nil {
			p.addr = m[1]
			break
		}
	}
	return true, d.state(t, dir, p)
}

// state says how many acknowledged messages are missing, and what cannot be read or written.
func (d *damagedInstallation) state(t *testing.T, dir string, p *process) string {
	code, tok, errs := run(t.Context(), nil, "--data-dir", dir, "token", "alice")
	if code != 0 {
		return "NO TOKEN " + errs
	}
	alice := newUser("alice", strings.TrimSpace(tok), p.addr, newTransport(t, false))
	missing, broken := 0, map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, id := range d.chats {
		have := map[string]bool{}
		for more, after := true, int64(0); more; {
			res, err := alice.messages.ListMessages(ctx,
				&messagev1.ListMessagesRequest{ChatId: id, AfterSequence: &after, PageSize: 100})
			if err != nil {
				broken[err.Error()]++
				break
			}
			for _, m := range res.GetMessages() {
				have[m.GetMessageId()], after = true, m.GetSequence()
			}
			more = res.GetHasMore()
		}
		for _, a := range d.acks[id] {
			if !have[a.GetMessageId()] {
				missing++
			}
		}
		if _, err := alice.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: id, Content: "more"}); err != nil {
			broken["send: "+err.Error()]++
		}
	}
	return fmt.Sprintf("%d missing %v", missing, broken)
}

// With any damage to a file of the data directory, the server starts with all that was acknowledged, or it
// refuses and names the command that helps. After that command, with a backup, it starts with all that was
// acknowledged. PARLEY_DAMAGES sets how many damages are tried.
func TestDamagedFileCostsNothing(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	type damage struct{ file, harm int }
	var list []damage
	for i := range kindsOfFiles {
		for j := range harms {
			list = append(list, damage{i, (i + j) % len(harms)})
		}
	}
	// One of each kind of file first.
	slices.SortStableFunc(list, func(a, b damage) int {
		return cmp.Compare((a.harm-a.file+len(harms)*2)%len(harms), (b.harm-b.file+len(harms)*2)%len(harms))
	})
	refused := 0
	for round := range testkit.Rounds(t, "PARLEY_DAMAGES", len(kindsOfFiles)) {
		c := list[round%len(list)]
		if d.try(t, kindsOfFiles[c.file], harms[c.harm].name, harms[c.harm].do) {
			refused++
		}
	}
	if refused < 3 {
		t.Errorf("%d starts were refused", refused)
	}
}

// try damages a file, starts the server, and does what it says. It reports whether the server refused.
func (d *damagedInstallation) try(t *testing.T, pattern, harm string, do func(path string) error) (refused bool) {
	t.Helper()
	dir := d.copy(t)
	if err := do(d.file(t, dir, pattern)); errors.Is(err, errEmptyFile) {
		return false // such a file has only a name
	} else if err != nil {
		t.Fatal(err)
	}
	const whole = "0 missing map[]"
	started, out := d.attempt(t, dir)
	t.Logf("%s %s: started %v, %s", pattern, harm, started, out)
	switch {
	case started && out != whole:
		t.Errorf("%s %s: %s", pattern, harm, out)
	case started:
		return false
	case strings.Contains(out, "openssl genpkey"): // of the key there is no copy
		return true
	case !strings.Contains(out, "check --repair"):
		t.Errorf("%s %s: the refusal names no command: %s", pattern, harm, out)
	}
	code, said := checked(t, dir, "--repair", "--from", d.backup)
	if code != exitRepaired {
		t.Errorf("%s %s: the repair ends with %d: %s", pattern, harm, code, said)
	}
	if started, out := d.attempt(t, dir); !started || out != whole {
		t.Errorf("%s %s: after the repair: %s; it said %s", pattern, harm, out, said)
	}
	return true
}

const exitRepaired = 0

// copy copies the data directory.
func (d *damagedInstallation) copy(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	testkit.Must(t, os.CopyFS(dir, os.DirFS(d.dir)))
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(dir, "*")))(t) {
		if info, err := os.Stat(path); err == nil && !info.IsDir() { // which a copy does not keep
			testkit.Must(t, os.Chmod(path, 0o600))
		}
	}
	return dir
}

// The page on damage says what works: its lines are run in their order on a store with a damaged file.
func TestDamagePage(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	page := string(testkit.Value(os.ReadFile("../../docs/damage.md"))(t))
	home := t.TempDir()
	testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, "server")))
	dir := filepath.Join(home, ".parley")
	testkit.Must(t, os.Rename(d.copy(t), dir))
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(dir, "store", "*.sst")))(t) {
		testkit.Must(t, rewrite(path, func(b []byte) []byte { b[len(b)/2] ^= 4; return b }))
	}
	said, starts := "", 0
	for _, code := range shellBlocks(page) {
		if code == "./server\n" { // which would not end
			if started, out := d.attempt(t, dir); !started || out != "0 missing map[]" {
				t.Errorf("after the repair: %s", out)
			}
			starts++
			continue
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-uc", strings.ReplaceAll(code, "/var/backups/parley", d.backup))
		cmd.Dir = home
		out, err := cmd.CombinedOutput()
		want := 0
		if code == "./server check\n" || code == "./server check --repair\n" { // some of what is lost only the backup has
			want = 1
		}
		if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) || cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %v: %s", code, err, out)
		}
		said += string(out)
	}
	left := testkit.Value(filepath.Glob(filepath.Join(dir, "store*")))(t)
	if starts != 1 || len(left) != 1 || !strings.Contains(said, "file_damaged") ||
		!strings.Contains(said, "another was built") || !strings.Contains(said, "cannot be read") {
		t.Errorf("%d starts, left are %v: %s", starts, left, said)
	}
}

// A damaged block of the store shows as soon as a call needs it: readyz and the metric say so.
func TestDamagedBlockIsReported(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	dir := d.copy(t)
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(dir, "store", "*.sst")))(t) {
		testkit.Must(t, rewrite(path, func(b []byte) []byte {
			for at := 512; at < len(b)*3/4; at += 4096 { // not the index, which is read at once
				b[at] ^= 4
			}
			return b
		}))
	}
	// With all blocks damaged it does not start, and one that a start reads is refused like a file.
	started, out := d.attempt(t, dir)
	if started || !strings.Contains(out, "check --repair") || strings.Contains(out, "carrier") {
		t.Errorf("with damage in each block: started %v, %s", started, out)
	}
	dir = d.copy(t)
	for _, path := range testkit.Value(filepath.Glob(filepath.Join(dir, "store", "*.sst")))(t) {
		testkit.Must(t, rewrite(path, func(b []byte) []byte { return d.flipMessage(b) }))
	}
	p := launch(t, dir, "127.0.0.1:0")
	alice := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	failed := 0
	for _, id := range d.chats {
		if _, err := alice.messages.ListMessages(t.Context(), &messagev1.ListMessagesRequest{ChatId: id}); err != nil {
			failed++
		}
	}
	for path, want := range map[string]string{"/readyz": "ready\na file of the store is damaged: stop the server and run the command check --repair",
		"/metrics": "parley_store_damaged 1"} {
		res := testkit.Value(http.Get("http://" + p.addr + path))(t)
		body := testkit.Value(io.ReadAll(res.Body))(t)
		testkit.Must(t, res.Body.Close())
		if res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%d reads failed; %s: %d %.300s", failed, path, res.StatusCode, body)
		}
	}
	if failed == 0 || !strings.Contains(p.log.String(), "check --repair") {
		t.Errorf("%d reads failed; the log says %s", failed, &p.log)
	}
}

// What neither the store nor the event log has is named by chat and version, and the chats work without
// it; a backup that has it gives it back.
func TestLostEverywhere(t *testing.T) {
	t.Parallel()
	d := newDamaged(t)
	lost := map[string][]store.Key{ // of each chat other rows
		d.chats[0]: {table.EventKey(d.chats[0], 10), table.EventKey(d.chats[0], 11), table.MessageKey(d.chats[0], 8)},
		d.chats[1]: {table.EventKey(d.chats[1], 62), table.MessageKey(d.chats[1], 60)},
		d.chats[2]: {table.EventKey(d.chats[2], 2), table.HeadKey(d.chats[2])}, // of a member
	}
	o, err := backend.OpenOffline(backend.Config{Embedded: &backend.Embedded{DataDir: d.dir, Kafka: "127.0.0.1:0"}}, true)
	testkit.Must(t, err)
	for _, keys := range lost {
		for _, key := range keys {
			testkit.Must(t, o.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: key}}}))
		}
	}
	testkit.Must(t, o.Close())
	code, said := checked(t, d.dir, "--repair")
	for _, want := range []string{"2 events of the chat, from version 10 to 11, are missing; of their 2 messages, from number 8 on, 1 are there",
		"1 events of the chat, from version 62 to 62, are missing; of their 1 messages, from number 60 on, 0 are there",
		"1 events of the chat, from version 2 to 2, are missing; 1 changed the chat or its members"} {
		if code != 1 || !strings.Contains(said, want) {
			t.Errorf("%d, without %q: %s", code, want, said)
		}
	}
	with := d.copy(t)
	if started, out := d.attempt(t, d.dir); !started || out != "2 missing map[]" {
		t.Errorf("without what is lost: %v %s", started, out)
	}
	if code, said := checked(t, with, "--repair", "--from", d.backup); code != 0 {
		t.Errorf("with the backup: %d %s", code, said)
	}
	if started, out := d.attempt(t, with); !started || out != "0 missing map[]" {
		t.Errorf("with the backup: %v %s", started, out)
	}
	if code, said := checked(t, with, "--from", d.backup); code != 2 || !strings.Contains(said, "--repair --from") {
		t.Errorf("%d %s", code, said)
	}
}
