package app_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A real file system stands still while a server runs on it. The server logs the directory from
// a second on, /readyz is 503 with the reason and does not hang, /healthz and /metrics answer,
// and what was sent meanwhile is stored once when the disk is back.
func TestDiskThatHangs(t *testing.T) {
	t.Parallel() // it mostly waits
	image, at := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	shell := func(line string) error {
		out, err := exec.CommandContext(context.Background(), "sh", "-ec", line).CombinedOutput()
		if err != nil {
			t.Logf("%s: %s", line, out)
		}
		return err
	}
	if err := shell("truncate -s 1G " + image + "; mkfs.ext4 -q -m 0 " + image + "; mount -o loop " + image + " " + at +
		"; fsfreeze -f " + at + "; fsfreeze -u " + at); err != nil {
		_ = shell("umount " + at)
		t.Skip("not run: a file system cannot be made, or not be stopped: ", err)
	}
	frozen := false
	t.Cleanup(func() {
		if frozen {
			testkit.Must(t, shell("fsfreeze -u "+at))
		}
		testkit.Must(t, shell("umount "+at))
	})
	dir := filepath.Join(at, "data")
	s := startScreened(t, "--listen", "127.0.0.1:0", "--data-dir", dir)
	addr := "http://127.0.0.1:" + s.port
	alice := s.as(t, dir, "alice")
	s.as(t, dir, "bob").list(t)
	created, err := alice.chats.CreateChat(t.Context(), group())
	testkit.Must(t, err)
	ids := map[string]string{"before": uuid.NewString(), "meanwhile": uuid.NewString()}
	send := func(text string) error {
		_, err := alice.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{
			ChatId: created.GetOverview().GetChat().GetChatId(), ClientMessageId: ids[text], Content: text})
		return err
	}
	testkit.Must(t, send("before"))

	testkit.Must(t, shell("fsfreeze -f "+at))
	frozen = true
	sent := make(chan error, 1)
	go func() { sent <- send("meanwhile") }()
	testkit.Eventually(t, "the log names the disk", func() bool {
		log := s.log.String()
		return strings.Contains(log, "the disk is slow or hangs") && strings.Contains(log, "dir="+dir)
	})
	patient := http.Client{Timeout: time.Minute} // for a page that hangs with the disk
	var body string
	testkit.Eventually(t, "the server is not ready", func() bool {
		res, err := patient.Get(addr + "/readyz")
		testkit.Must(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		testkit.Must(t, err)
		body = string(text)
		return res.StatusCode == http.StatusServiceUnavailable
	})
	if !strings.Contains(body, "the disk of "+dir+" does not answer: a ") {
		t.Error(body)
	}
	if status, _ := get(t, addr+"/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	if v := scrape(t, "127.0.0.1:"+s.port, `parley_disk_slowest_call_seconds{dir="`+dir+`"}`); v < 5 {
		t.Errorf("the slowest call took %v s", v)
	}
	testkit.Must(t, shell("fsfreeze -u "+at))
	frozen = false
	testkit.Must(t, <-sent)
	testkit.Must(t, send("meanwhile")) // once more, with the same id
	testkit.Eventually(t, "the server is ready", func() bool {
		status, _ := get(t, addr+"/readyz")
		return status == 200
	})
	page, err := alice.messages.ListMessages(t.Context(),
		&messagev1.ListMessagesRequest{ChatId: created.GetOverview().GetChat().GetChatId()})
	if testkit.Must(t, err); len(page.GetMessages()) != 2 {
		t.Errorf("%v", page)
	}
	s.stop()
}

// The page on full disks, executed line by line on a disk that is full: what it says that a
// command shows is shown, and on the larger disk writes work.
func TestFullDiskPage(t *testing.T) {
	t.Parallel()
	page := string(testkit.Value(os.ReadFile("../../docs/full-disk.md"))(t))
	home, larger := smallDisk(t, 128<<20), t.TempDir()
	testkit.Must(t, os.Symlink(binary(t), filepath.Join(home, "server")))
	data := filepath.Join(home, ".parley")
	first := launch(t, data, "127.0.0.1:0")
	r := &benchFixture{b: t, ctx: t.Context(), dir: data, p: first}
	r.readKey()
	bob, alice := r.user("bob", false), r.user("alice", false)
	bob.list(t)
	chat := r.group(alice, "bob")
	testkit.Must(t, os.WriteFile(filepath.Join(home, "others"), make([]byte, 90<<20), 0o600))
	write := func() error {
		_, err := alice.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: chat, Content: "x"})
		return err
	}
	testkit.Eventually(t, "writes are refused", func() bool { return isFull(write()) })
	p := first
	shell := func(code string) string {
		code = strings.NewReplacer("127.0.0.1:8080", p.addr, "/mnt/larger", larger).Replace(code)
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", code)
		cmd.Dir = home
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", code, err, out)
		}
		return string(out)
	}
	said := ""
	for _, code := range shellBlocks(page) {
		before, args, starts := strings.Cut(code, "./server ") // which would not end
		if !starts {
			said += shell(code)
			continue
		}
		p.signaled(t, os.Interrupt)
		said += shell(before)
		words := strings.Fields(strings.ReplaceAll(args, "/mnt/larger", larger))
		if at := slices.Index(words, "--data-dir"); at >= 0 {
			data = words[at+1]
			words = slices.Delete(words, at, at+2)
		}
		p = launch(t, data, first.addr, words...)
		said += strings.Join(words, " ") + p.log.String()
	}
	for _, want := range []string{"the disk of " + filepath.Join(home, ".parley") + " is nearly full: writes are refused",
		"parley_disk_free_bytes{", "parley_disk_reserve_bytes{", "} 1\n", "parley_disk_hours_left{",
		"parley_disk_slowest_call_seconds{", ".parley/store", "--disk-reserve 1GB",
		"the disk is nearly full"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing of the page said %q: %s", want, said)
		}
	}
	if _, got := get(t, "http://"+first.addr+"/readyz"); got != "ready\n" || !strings.HasPrefix(data, larger) {
		t.Errorf("on the larger disk %s: %s", data, got)
	}
	testkit.Must(t, write())
	p.signaled(t, os.Interrupt)
}
