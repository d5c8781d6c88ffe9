package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/testkit"
)

// restorer is a server that is killed, copied and put back to earlier copies of its directory, by
// hand and without a word to it, under devices that go on sending.
type restorer struct {
	t       *testing.T
	rng     *rand.Rand
	p       *process
	dir     string
	copies  []string
	reader  *user
	chats   []string
	devices []*client.Client
	store   []*client.Memory // of the devices
}

// device runs a device of a user until the test ends.
func (r *restorer) device(name string) {
	storage := &client.Memory{}
	bearer := token(r.t, r.dir, name)
	c, err := client.Dial(client.Config{BaseURL: "http://" + r.p.addr, UserID: name, Storage: storage,
		HTTP:  &http.Client{Transport: newTransport(r.t, false)},
		Token: func(context.Context, bool) (string, error) { return bearer, nil }})
	testkit.Must(r.t, err)
	for _, id := range r.chats {
		c.Open(id)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); ctx.Err() == nil {
			r.t.Error(name, "ended:", err)
		}
	})
	r.t.Cleanup(func() { stop(); running.Wait() })
	r.devices, r.store = append(r.devices, c), append(r.store, storage)
}

// burst has the devices send for a moment; some of it is on its way when the server is killed.
func (r *restorer) burst() {
	for range 1 + r.rng.IntN(12) {
		r.devices[r.rng.IntN(len(r.devices))].Send(r.chats[r.rng.IntN(len(r.chats))], fmt.Sprint("text ", r.rng.Uint32()))
		time.Sleep(time.Duration(r.rng.IntN(6)) * time.Millisecond)
	}
}

func (r *restorer) kill() { r.p.kill() }

// keep copies the directory of a server that does not run.
func (r *restorer) keep() {
	to := filepath.Join(r.t.TempDir(), "copy")
	testkit.Must(r.t, exec.Command("cp", "-Rp", r.dir, to).Run())
	r.copies = append(r.copies, to)
}

func (r *restorer) putBack() {
	testkit.Must(r.t, os.RemoveAll(r.dir))
	testkit.Must(r.t, exec.Command("cp", "-Rp", r.copies[r.rng.IntN(len(r.copies))], r.dir).Run())
}

// compare waits until each device has sent what it has, and shows what the store has, all of it and
// nothing else.
func (r *restorer) compare(ctx context.Context, round int) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for i, c := range r.devices {
		for _, id := range r.chats {
			for {
				wrong := r.differs(ctx, c, id)
				if wrong == "" {
					break
				}
				if time.Now().After(deadline) {
					r.t.Fatalf("round %d: device %d: %s", round, i, wrong)
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
}

func (r *restorer) differs(ctx context.Context, c *client.Client, id string) string {
	if n := len(c.Outbox()); n > 0 {
		return fmt.Sprint(n, " messages wait to be sent")
	}
	stored := history(ctx, r.t, r.reader, id)
	v, ok := c.View(id)
	if !ok || !v.Loaded || v.Version != v.Newest {
		return fmt.Sprintf("%s is not up to date: %v, version %d of %d", id, ok, v.Version, v.Newest)
	}
	if len(stored) > 0 && v.First > 0 {
		stored = stored[min(len(stored), int(max(v.First, 1))-1):]
	}
	if len(v.Messages) != len(stored) {
		return fmt.Sprintf("%s has %d messages from %d on, the store %d", id, len(v.Messages), v.First, len(stored))
	}
	for i, m := range stored {
		if got := v.Messages[i]; got.GetMessageId() != m.GetMessageId() || got.GetContent() != m.GetContent() ||
			got.GetSequence() != m.GetSequence() {
			return fmt.Sprintf("%s: %v, the store has %v", id, got, m)
		}
	}
	if read := v.Head.GetSequence(); len(stored) > 0 && read != stored[len(stored)-1].GetSequence() {
		return fmt.Sprintf("%s ends at %d in the list", id, read)
	}
	return ""
}

// A copy of a data directory that is put back, as cp does it, is noticed by the devices that were
// shown what it lacks: after each of many kills and returns, under load, all devices show what the
// store has. Nothing that was on its way is lost, and a start that loses nothing has nothing read again.
// PARLEY_KILLS sets the number of kills, or the time for them.
func TestKillRestore(t *testing.T) {
	r := &restorer{t: t, rng: rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 3)),
		dir: filepath.Join(t.TempDir(), "data")}
	r.p = launch(t, r.dir, "127.0.0.1:0")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := r.p.addr
	alice := newUser("alice", token(t, r.dir, "alice"), addr, newTransport(t, false))
	r.reader = newUser("bob", token(t, r.dir, "bob"), addr, newTransport(t, false))
	h := &harness{b: t, ctx: ctx, dir: r.dir}
	r.chats = []string{h.group(alice, "bob"), h.group(alice, "bob"), h.group(alice, "bob")}
	for _, name := range []string{"alice", "alice", "bob", "bob"} {
		r.device(name)
	}
	r.compare(ctx, 0)
	restored := 0
	for round := range testkit.Rounds(t, "PARLEY_KILLS", 6) {
		progress()
		r.burst()
		r.kill()
		back := false
		switch n := r.rng.IntN(3); {
		case n == 0 || len(r.copies) == 0:
			r.keep()
		case n == 1:
			back = true
			r.putBack()
			restored++
		}
		r.p = launch(t, r.dir, addr)
		if r.rng.IntN(2) == 0 { // others go on past the versions that are lost, before a device is back
			_, err := call(ctx, alice.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: r.chats[0], Content: "on"})
			testkit.Must(t, err)
		}
		r.compare(ctx, round+1)
		if over := strings.Contains(r.p.log.String(), "a client was shown what the store does not have"); over && !back {
			t.Errorf("round %d: a device started over after a kill alone", round+1)
		}
	}
	for _, id := range r.chats {
		stored := history(ctx, t, r.reader, id)
		checkHistory(ctx, t, r.reader, id, stored)
		checkLog(ctx, t, r.p.kafka, id, stored, asReader(t, r.dir)...)
	}
	t.Logf("%d of the starts were on an earlier copy", restored)
}
