package app_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/modeltest"
)

// killsOfWorld is after how many kills a world of the model client ends and is checked. What it has
// seen is kept in memory until then.
const killsOfWorld = 20

// TestTopicModel kills the real binary again and again under a model client of topics: publishers that
// repeat and restart, groups with filters, keys, dead letters and pauses, that move, die, come late,
// get other settings and backfills, and are cancelled. Nothing that it sees breaks the contract, and
// in the end every group has acknowledged all that was for it (HQ-B15, HQ-G01).
// PARLEY_TOPIC_KILLS sets the number of kills, 2 to 5 s apart, or the time for them. Without it there
// are two, sooner.
func TestTopicModel(t *testing.T) {
	seed := testkit.Seed(t, rand.Uint64())
	rng := rand.New(rand.NewPCG(seed, 5))
	least, limit := 2*time.Second, 5*time.Second
	if os.Getenv("PARLEY_TOPIC_KILLS") == "" {
		t.Parallel()
		least, limit = 500*time.Millisecond, time.Second
	}
	dir := t.TempDir()
	flags := []string{"--topic-creators", "alice", "--ops-listen", "127.0.0.1:0"}
	p := launch(t, dir, "127.0.0.1:0", flags...)
	flags[3] = opsOf(t, p)
	addr := p.addr
	key, err := auth.ReadKey(filepath.Join(dir, "auth.key"))
	testkit.Must(t, err)
	ada, err := key.IssueOperator("ada", time.Now(), 24*time.Hour)
	testkit.Must(t, err)
	tr := newTransport(t, true)
	as := func(token, addr string) modeltest.Clients {
		return modeltest.Dial(&http.Client{Transport: bearer{token, tr}}, "http://"+addr, connect.WithGRPC())
	}
	config := modeltest.Config{User: as(token(t, dir, "alice"), addr), Operator: as(ada, flags[3]),
		Stranger: as(token(t, dir, "eve"), addr), Name: "eve", Pace: 100 * time.Millisecond, Patience: 2 * time.Minute}
	var w *modeltest.World
	settle := func() {
		if findings := w.Settle(t.Context()); len(findings) > 0 {
			t.Fatalf("%d findings with PARLEY_EXPLORE_SEED=%d:\n%s", len(findings), seed, strings.Join(findings, "\n"))
		}
		t.Log(w)
		w = nil
	}
	for n := range testkit.Rounds(t, "PARLEY_TOPIC_KILLS", 2) {
		if n%killsOfWorld == 0 {
			if w != nil {
				settle()
			}
			config.Topics, config.Seed = fmt.Sprintf("world%d.", n/killsOfWorld), seed+uint64(n)
			w = modeltest.New(config)
			testkit.Must(t, w.Start(t.Context()))
		}
		time.Sleep(least + time.Duration(rng.Int64N(int64(limit-least)))) // load, and then a kill in the midst of it
		w.Killed()
		p.kill()
		p = launch(t, dir, addr, flags...)
		w.Back()
	}
	settle()
}
