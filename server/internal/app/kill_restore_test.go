package app_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// restorer is a server that is killed, copied and put back to earlier copies of its directory, by
// hand and without a word to it, under clients that go on.
type restorer struct {
	t           *testing.T
	rng         *rand.Rand
	p           *process
	dir         string
	copies      []string
	reader      *user
	writer      *user
	chats       []string
	devices     []device
	integrators []*integrator
	books       *books
}

// launch starts the server, where it was before.
func (r *restorer) launch() {
	addr, kafka := "127.0.0.1:0", "127.0.0.1:0"
	if r.p != nil {
		addr, kafka = r.p.addr, r.p.kafka
	}
	r.p = launch(r.t, r.dir, addr, "--kafka-listen", kafka, "--topic-creators", "alice")
}

// integrate runs an integrator until the test ends.
func (r *restorer) integrate(group string) {
	in := newIntegrator(r.t, r.dir, r.p.kafka, group)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { in.run(ctx) })
	r.t.Cleanup(func() { stop(); running.Wait() })
	r.integrators = append(r.integrators, in)
}

// burst has the clients send for a moment; some of it is on its way when the server is killed.
func (r *restorer) burst() {
	for range 1 + r.rng.IntN(12) {
		if r.books != nil && r.rng.IntN(4) == 0 {
			r.books.send()
		} else {
			r.devices[r.rng.IntN(len(r.devices))].send(r.chats[r.rng.IntN(len(r.chats))], fmt.Sprint("text ", r.rng.Uint32()))
		}
		time.Sleep(time.Duration(r.rng.IntN(6)) * time.Millisecond)
	}
}

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

// until waits until differs says nothing, which it says of what at the end if that takes 90 seconds: a client that
// has failed to connect a few times waits for up to half a minute before the next try.
func (r *restorer) until(round int, what string, differs func() string) {
	r.t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		wrong := differs()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("round %d: %s: %s", round, what, wrong)
		}
	}
}

// compare waits until each client has sent what it has, and shows what the store has, all of it and
// nothing else.
func (r *restorer) compare(ctx context.Context, round int) {
	r.t.Helper()
	r.compareDevices(ctx, round)
	for i, in := range r.integrators {
		r.until(round, fmt.Sprint("integrator ", i), func() string { return in.differs(ctx, r) })
	}
	if r.books != nil {
		r.books.poke(ctx)
		r.until(round, "topic", func() string { return r.books.differs(ctx) })
	}
}

func (r *restorer) compareDevices(ctx context.Context, round int) {
	r.t.Helper()
	for i, d := range r.devices {
		for _, id := range r.chats {
			r.until(round, fmt.Sprint("device ", i), func() string { return d.differs(id, history(ctx, r.t, r.reader, id)) })
		}
	}
}

// noticed waits until each client has noticed that the server was put back, after compare. A client may show what
// the store has although it has asked for nothing since the start: if nothing was lost but a commit that shows
// nothing, or if the copy has in its outbox what was read from the log, whose records then have other positions. It
// would start over in a later round, which may be one without a return.
func (r *restorer) noticed(ctx context.Context, round int) {
	r.t.Helper()
	r.send(ctx, r.chats[0], "noticed")
	for _, in := range r.integrators {
		in.ask()
	}
	r.compareDevices(ctx, round)
	for i, in := range r.integrators {
		r.until(round, fmt.Sprint("integrator ", i), in.waits)
	}
}

// send sends a message by a call that no device makes.
func (r *restorer) send(ctx context.Context, chat, text string) {
	r.t.Helper()
	_, err := call(ctx, r.writer.messages.SendMessage, &messagev1.SendMessageRequest{ChatId: chat, Content: text})
	testkit.Must(r.t, err)
}

// starts counts how often each client that knows has started over: the integrators and the group.
func (r *restorer) starts() (list []int) {
	for _, in := range r.integrators {
		list = append(list, in.starts())
	}
	return append(list, r.books.starts())
}

// A copy of a data directory that is put back, as cp does it, is noticed by everybody who was shown
// what it lacks: after each of many kills and returns, under load, all devices, of the Go client and of
// the TypeScript one, show what the store has, and so do programs that read the events of chats from
// Kafka, by positions on the server or in databases of their own, and those that publish to a topic and
// consume it. Nothing that was on its way is lost, and a start that loses nothing has nothing read again.
// PARLEY_KILLS sets the number of kills, or the time for them.
func TestKillRestore(t *testing.T) {
	besides(t)
	r := &restorer{t: t, rng: rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 3)),
		dir: filepath.Join(t.TempDir(), "data")}
	r.launch()
	ctx, progress := untilStuck(t, 5*time.Minute)
	r.writer = newUser("alice", token(t, r.dir, "alice"), r.p.addr, newTransport(t, false))
	r.reader = newUser("bob", token(t, r.dir, "bob"), r.p.addr, newTransport(t, false))
	h := &benchFixture{b: t, ctx: ctx, dir: r.dir}
	r.chats = []string{h.group(r.writer, "bob"), h.group(r.writer, "bob"), h.group(r.writer, "bob")}
	for _, name := range []string{"alice", "alice", "bob", "bob"} {
		r.devices = append(r.devices, newGoDevice(t, token(t, r.dir, name), r.p.addr, name, r.chats))
	}
	if packedClient() == "" {
		t.Log("not run: devices of the TypeScript client, because PARLEY_TEST_TSCLIENT is not set")
	} else {
		for _, name := range []string{"alice", "bob"} {
			r.devices = append(r.devices, newNodeDevice(t, r.dir, r.p.addr, name, r.chats))
		}
	}
	r.integrate("")
	r.integrate("integrator")
	r.books = newBooks(ctx, t, r.dir, r.p.addr, "orders")
	r.compare(ctx, 0)
	restored := 0
	for round := range testkit.Rounds(t, "PARLEY_KILLS", 6) {
		progress()
		before := r.starts()
		r.burst()
		r.p.kill()
		back := false
		switch n := r.rng.IntN(4); {
		case n == 0 || len(r.copies) == 0:
			r.keep()
		case n < 3:
			back = true
			r.putBack()
			restored++
		}
		r.launch()
		if r.rng.IntN(2) == 0 { // others go on past the versions that are lost, before a client is back
			r.send(ctx, r.chats[0], "on")
		}
		r.compare(ctx, round+1)
		if back {
			r.noticed(ctx, round+1)
			continue
		}
		startedOver := strings.Contains(r.p.log.String(), otherHistory)
		if after := r.starts(); startedOver || !slices.Equal(before, after) {
			t.Errorf("round %d: clients started over after a kill alone: the server told one: %v; integrators and group %v, before %v",
				round+1, startedOver, after, before)
		}
	}
	for _, id := range r.chats { // a copy may be from before the first message of one
		r.send(ctx, id, "last")
		stored := history(ctx, t, r.reader, id)
		checkHistory(ctx, t, r.reader, id, stored)
		checkLog(ctx, t, r.p.kafka, id, stored, asReader(t, r.dir)...)
	}
	t.Logf("%d of the starts were on an earlier copy; programs started over %v times", restored, r.starts())
}
