package app_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/faultydisk"
	"github.com/parley-chat/parley/server/kafka/port"
)

// faultyRound is something that happens to the disk. It ends with a server that serves.
type faultyRound struct {
	name string
	do   func(*onFaultyDisk)
}

// faultyRounds are all of them. The plain form has one of the first three, which ask most of the server: CI runs all of
// them for longer in a step of its own.
var faultyRounds = []faultyRound{
	{"it runs full", (*onFaultyDisk).full},
	{"a bit is flipped", (*onFaultyDisk).flipped},
	{"it hangs", (*onFaultyDisk).hangs},
	{"it loses what was not synced", (*onFaultyDisk).lost},
	{"it is slow", (*onFaultyDisk).slow},
	{"a sync fails", (*onFaultyDisk).failed},
	{"reads flip bits", (*onFaultyDisk).unreliable},
	{"a backup is made", (*onFaultyDisk).backedUp},
}

// TestFaultyDisk runs the real binary on a disk that loses what was not synced, is slow, hangs,
// runs full, fails and flips bits, and kills it above that. Clients go on through all of it.
// After each round every acknowledged message is there once, with its content and sequence,
// streams showed all messages once and in order, all of them came on the Kafka port, no position
// of a group is ahead, each group of a topic got every message, and what a read showed was right.
// PARLEY_DISK_FAULTS sets the number of rounds, or the time for them; PARLEY_DISK_FAULT the name
// of the only round.
func TestFaultyDisk(t *testing.T) {
	t.Parallel()
	r := newOnFaultyDisk(t)
	const variable, hardest, usual = "PARLEY_DISK_FAULTS", 3, 1
	rounds := faultyRounds
	if only := os.Getenv("PARLEY_DISK_FAULT"); only != "" {
		rounds = slices.DeleteFunc(slices.Clone(rounds), func(f faultyRound) bool { return f.name != only })
	} else if os.Getenv(variable) == "" {
		rounds = rounds[:hardest]
	}
	var order []int
	for n := range testkit.Rounds(t, variable, usual) {
		if len(order) == 0 {
			order = r.rng.Perm(len(rounds))
		}
		round := rounds[order[0]]
		order = order[1:]
		r.progress()
		began := time.Now()
		round.do(r)
		r.verify()
		t.Logf("round %d: %s: %d acknowledged, %d refused, %d internal errors, %s", n, round.name, len(r.acks.list),
			r.refused.Load(), r.internal.Load(), time.Since(began).Round(100*time.Millisecond))
		if t.Failed() {
			return
		}
	}
	r.stop()
	r.p.kill() // which ends their streams
	r.members()
}

// lost kills the server at any moment.
func (r *onFaultyDisk) lost() {
	stop := r.load()
	r.acknowledged(20 + r.rng.IntN(200))
	r.kill()
	r.start()
	r.acknowledged(20)
	stop()
}

func (r *onFaultyDisk) slow() {
	f := r.disk.Inject(faultydisk.Fault{Delay: time.Duration(1+r.rng.IntN(10)) * time.Millisecond})
	stop := r.load()
	r.acknowledged(10 + r.rng.IntN(40))
	r.kill()
	r.start()
	r.acknowledged(10)
	f.Stop()
	stop()
}

// hangs has all calls hang, or only syncs. The log names the disk, /readyz says so and does not
// hang, and service continues by itself when calls return, or after a kill.
func (r *onFaultyDisk) hangs() {
	fault := faultydisk.Fault{Hang: true}
	if r.rng.IntN(2) == 0 {
		fault.Ops = []string{"sync"}
	}
	stop := r.load()
	r.acknowledged(20 + r.rng.IntN(50))
	from := len(r.p.log.String())
	f := r.disk.Inject(fault)
	testkit.Eventually(r.t, "the log names the disk", func() bool {
		log := r.p.log.String()[from:]
		return strings.Contains(log, "the disk is slow or hangs") && strings.Contains(log, "dir="+r.dir)
	})
	testkit.Eventually(r.t, "the server is not ready", func() bool {
		status, body := r.page("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "the disk of "+r.dir+" does not answer: a ")
	})
	if status, body := r.page("/healthz"); status != http.StatusOK {
		r.t.Errorf("healthz: %d %s", status, body)
	}
	if r.rng.IntN(2) == 0 {
		f.Stop()
		testkit.Eventually(r.t, "the server is ready", func() bool {
			status, _ := r.page("/readyz")
			return status == http.StatusOK
		})
		r.acknowledged(20)
		r.kill()
		r.start()
	} else {
		r.kill()
		f.Stop()
		r.start()
		r.acknowledged(20)
	}
	stop()
}

// page asks the server for a page, and waits for one that hangs with the disk.
func (r *onFaultyDisk) page(path string) (status int, body string) {
	r.t.Helper()
	res, err := (&http.Client{Timeout: time.Minute}).Get("http://" + r.addr + path)
	testkit.Must(r.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(r.t, err)
	return res.StatusCode, string(text)
}

// full has others fill the disk to 95 % or more. Writes are refused and reads work, also after a
// kill if there is room to start, and with room again writes are accepted.
func (r *onFaultyDisk) full() {
	percent := []float64{95, 98, 99, 100}[r.rng.IntN(4)]
	stop := r.load()
	r.acknowledged(20 + r.rng.IntN(50))
	before := r.refused.Load()
	r.disk.Fill(percent)
	ended := r.refuses(before, percent)
	if ended || r.rng.IntN(2) == 0 {
		r.kill()
		if started, said := r.try(); started {
			if r.refuses(r.refused.Load(), percent) {
				r.kill()
				r.disk.Fill(50)
				r.start()
			}
		} else {
			if !strings.Contains(said, "the disk of "+r.dir) || !strings.Contains(said, "full") {
				r.t.Errorf("at %v %%: %s", percent, said)
			}
			r.disk.Fill(50)
			r.start()
		}
	}
	r.disk.Fill(50)
	r.acknowledged(20)
	stop()
	if status, body := r.page("/readyz"); status != http.StatusOK || body != "ready\n" {
		r.t.Errorf("with room: %d %s", status, body)
	}
}

// refuses waits until writes were refused more often than before, while reads work. It reports whether
// the server has ended instead, as it must if there is no room at all before it has seen that: what it
// was writing then is not on the disk. Pebble ends the process by itself if it cannot begin another log.
func (r *onFaultyDisk) refuses(before int64, percent float64) (ended bool) {
	r.t.Helper()
	testkit.Eventually(r.t, "writes are refused", func() bool {
		select {
		case <-r.p.gone:
			ended = true
		default:
		}
		return ended || r.refused.Load() > before
	})
	if ended {
		if percent < 100 {
			r.t.Fatalf("at %v %% the server has ended: %s", percent, r.p.log.String())
		}
		return true
	}
	for _, id := range r.chats {
		if _, err := r.bob.messages.ListMessages(r.ctx, &messagev1.ListMessagesRequest{ChatId: id}); err != nil {
			r.t.Errorf("at %v %%, a read: %v", percent, err)
		}
	}
	status, body := r.page("/readyz")
	if status != http.StatusOK || !strings.Contains(body, "is nearly full: writes are refused") {
		r.t.Errorf("at %v %%: %d %s", percent, status, body)
	}
	return false
}

// failed has syncs of the store fail. The server ends, since it cannot tell what is stored, and
// acknowledges nothing more.
func (r *onFaultyDisk) failed() {
	stop := r.load()
	r.acknowledged(20 + r.rng.IntN(50))
	f := r.disk.Inject(faultydisk.Fault{Ops: []string{"sync"}, Files: "data/store/*", Err: syscall.EIO})
	select {
	case <-r.p.gone:
	case <-r.ctx.Done():
		r.t.Fatal("the server goes on although syncs fail")
	}
	if log := r.p.log.tail(4 << 10); !strings.Contains(log, "input/output error") {
		r.t.Errorf("it ends without the cause: %s", log)
	}
	r.kill()
	f.Stop()
	r.start()
	r.acknowledged(20)
	stop()
}

// unreliable has reads of tables flip bits, as memory and cables do. Calls may fail, and show
// nothing that is wrong; after a restart nothing is left of it.
func (r *onFaultyDisk) unreliable() {
	r.kill()
	r.start() // with tables, and with nothing of them in memory
	f := r.disk.Inject(faultydisk.Fault{Files: "data/store/*.sst", Flip: rand.New(rand.NewPCG(r.rng.Uint64(), 1))})
	stop := r.load()
	for range 5 {
		r.readAll()
	}
	r.kill()
	f.Stop()
	r.start()
	r.acknowledged(20)
	stop()
}

// readAll reads all chats, and returns the errors.
func (r *onFaultyDisk) readAll() (errs []error) {
	for _, id := range r.chats {
		for more, after := true, int64(0); more; {
			res, err := r.bob.messages.ListMessages(r.ctx,
				&messagev1.ListMessagesRequest{ChatId: id, AfterSequence: &after, PageSize: 100})
			if err != nil {
				errs = append(errs, err)
				break
			}
			for _, m := range res.GetMessages() {
				after = m.GetSequence()
			}
			more = res.GetHasMore()
		}
		req := r.message(id, "more")
		if res, err := r.bob.messages.SendMessage(r.ctx, req); err != nil {
			errs = append(errs, err)
		} else {
			r.acks.add(req, res)
		}
	}
	return errs
}

// flipped flips a bit in a file of any kind of a server that was killed, after a backup.
// The server works with it, or names what helps: after that command it has all messages.
func (r *onFaultyDisk) flipped() {
	stop := r.load()
	r.acknowledged(20)
	stop()
	r.verify()
	saved := filepath.Join(r.t.TempDir(), "backup")
	if code, out := r.p.command(r.t, r.dir, "backup", saved); code != 0 {
		r.t.Fatalf("backup: %d %s", code, out)
	}
	r.kill()
	kinds := r.kinds()
	kind := slices.Sorted(maps.Keys(kinds))[r.rng.IntN(len(kinds))]
	if only := os.Getenv("PARLEY_DISK_FLIP"); only != "" {
		kind = only
	}
	file := kinds[kind][r.rng.IntN(len(kinds[kind]))]
	damage, ok := r.disk.Flip(file, r.rng)
	if !ok {
		r.start()
		return // it has only zeros
	}
	what := fmt.Sprintf("%s, bit %d of byte %d", damage.File, damage.Bit, damage.At)
	r.audit.damaged = r.audit.damaged || strings.HasPrefix(kind, "data/store/")
	started, said := r.try()
	if started {
		if strings.HasSuffix(kind, port.File) { // any other password is one, too
			r.password = r.credentials().Password
		}
		r.served(what, saved)
		return
	}
	r.t.Logf("%s: refused: %s", what, said)
	switch {
	case strings.Contains(said, "openssl genpkey"): // of a key there is no copy
		r.disk.Undo(damage)
		r.start()
	case strings.Contains(said, "check --repair"):
		r.repair(what, saved)
	default:
		r.t.Fatalf("%s: the refusal names no command: %s", what, said)
	}
}

// served checks a server that started with damage. Where calls fail that need what is damaged,
// it names the command that helps.
func (r *onFaultyDisk) served(what, saved string) {
	errs := r.readAll()
	r.t.Logf("%s: started, errors %v", what, errs)
	if len(errs) == 0 {
		r.p.kill()
		r.repair(what, saved) // else the next backup had the damage, too
		return
	}
	if status, body := r.page("/readyz"); status != http.StatusOK || !strings.Contains(body, "check --repair") {
		r.t.Fatalf("%s: calls fail with %v, and readyz says %d %s", what, errs, status, body)
	}
	for _, err := range errs {
		if connect.CodeOf(err) != connect.CodeInternal {
			r.t.Errorf("%s: %v", what, err)
		}
	}
	r.p.kill()
	r.repair(what, saved)
}

// repair runs the command that the server names, with a backup, until it has nothing more to do, and
// starts the server.
func (r *onFaultyDisk) repair(what, saved string) {
	r.t.Helper()
	for range 3 {
		code, said := checked(r.t, r.dir, "--repair", "--from", saved)
		r.t.Logf("%s: check --repair: %d: %s", what, code, said)
		if code == exitRepaired {
			break
		}
	}
	r.stop() // what the clients of the topic know may not hold any more
	r.members()
	r.start()
	if errs := r.readAll(); len(errs) > 0 {
		r.t.Fatalf("%s: after the repair: %v", what, errs)
	}
	r.startOver()
}

// backedUp makes a backup, and the power fails. What was acknowledged before is in the backup, and
// a bit that is flipped in it is found.
func (r *onFaultyDisk) backedUp() {
	stop := r.load()
	r.acknowledged(20)
	to := filepath.Join(r.mounted, "backups")
	before := map[string]int{}
	for _, id := range r.chats {
		before[id] = len(r.acks.byChat(id))
	}
	if code, out := r.p.command(r.t, r.dir, "backup", to); code != 0 {
		r.t.Fatalf("backup: %d %s", code, out)
	}
	r.kill()
	if code, out := checked(r.t, r.dir, to); code != 0 {
		r.t.Errorf("the backup after a power loss: %d %s", code, out)
	}
	r.start()
	r.acknowledged(10)
	stop()
	kinds := map[string][]string{}
	testkit.Must(r.t, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(r.mounted, path)
			kinds[kindOf(rel)] = append(kinds[kindOf(rel)], rel)
		}
		return err
	}))
	list := kinds[slices.Sorted(maps.Keys(kinds))[r.rng.IntN(len(kinds))]]
	if damage, ok := r.disk.Flip(list[r.rng.IntN(len(list))], r.rng); ok {
		// A bit of the list of a backup may make a file another one than the list says: then that is named.
		named := filepath.Base(damage.File)
		if named == "backup.json" {
			named = ""
		}
		if code, out := checked(r.t, r.dir, to); code != 1 || !strings.Contains(out, named) {
			r.t.Errorf("%+v in a backup: %d %s", damage, code, out)
		}
		code, _, said := run(r.t.Context(), nil, "--data-dir", filepath.Join(r.mounted, "restored"), "restore", to)
		if code == 0 {
			r.t.Errorf("%+v in a backup: it is restored: %s", damage, said)
		}
	}
	testkit.Must(r.t, os.RemoveAll(to))
	testkit.Must(r.t, os.RemoveAll(filepath.Join(r.mounted, "restored")))
}
