package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	"github.com/parley-chat/parley/gen/parley/analytics/v1/analyticsv1connect"
	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
)

func newAnalytics(t testing.TB, dir, addr, user string) analyticsv1connect.AnalyticsServiceClient {
	t.Helper()
	hc := &http.Client{Transport: bearer{token(t, dir, user), newTransport(t, true)}}
	return analyticsv1connect.NewAnalyticsServiceClient(hc, "http://"+addr, connect.WithGRPC())
}

func searchClick(id string) *analyticsv1.SearchEvent {
	return &analyticsv1.SearchEvent{ClientEventId: id, Event: &analyticsv1.SearchEvent_SearchClick{
		SearchClick: &searchv1.SearchClick{SearchId: "s", ResultId: "r"}}}
}

// readSearch reads committed records of topics until there is one of each id, and returns
// them by id. A record that comes again must be the same.
func readSearch(
	ctx context.Context, t *testing.T, p *process, dir string, ids map[string]bool, topics ...string,
) map[string]*kafka.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := kafka.NewReaderWith(asReader(t, dir), p.kafka, topics...)
	testkit.Must(t, err)
	defer c.Close()
	missing, found := maps.Clone(ids), map[string]*kafka.Record{}
	for len(missing) > 0 {
		fetches := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d events are not on Kafka\n%s", len(missing), len(ids), p.log.tail(2000))
		}
		fetches.EachRecord(func(r *kafka.Record) {
			var e search.Envelope
			if err := json.Unmarshal(r.Value, &e); err != nil {
				t.Fatalf("%s: %v", r.Value, err)
			}
			if was := found[e.EventID]; was != nil && (string(was.Value) != string(r.Value) || was.Partition != r.Partition) {
				t.Fatalf("%s was %s", r.Value, was.Value)
			}
			found[e.EventID] = r
			delete(missing, e.EventID)
		})
	}
	return found
}

// The lines of the page on search events are run as they stand there, and their events come
// on Kafka.
func TestSearchPage(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	page := string(testkit.Value(os.ReadFile("../../docs/search-events.md"))(t))
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(page)
	if block == nil {
		t.Fatal("the page has no lines for a shell")
	}
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--search-topics", "ac_select=suggestions:aggregate")
	script := strings.NewReplacer("127.0.0.1:8080", p.addr,
		"go run ./server", binary(t)+" --data-dir "+dir).Replace("set -e\n" + block[1])
	out, err := exec.CommandContext(t.Context(), bash, "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ids := map[string]bool{}
	for _, id := range regexp.MustCompile(`srch_[0-9A-Z]{26}-\d+`).FindAllString(string(out), -1) {
		ids[id] = true
	}
	if len(ids) != 3 || strings.Contains(string(out), "error") {
		t.Fatalf("%s", out)
	}
	topics := map[string]string{}
	for id, r := range readSearch(t.Context(), t, p, dir, ids, "search_click_v1", "search_impression_v1", "suggestions") {
		var e search.Envelope
		testkit.Must(t, json.Unmarshal(r.Value, &e))
		topics[e.EventType] = r.Topic
		if !ids[id] || !strings.Contains(string(e.Payload), `"user_id":"alice"`) || e.AggregateID != "s-1" {
			t.Errorf("%s", r.Value)
		}
	}
	testkit.Equal(t, "topics", fmt.Sprint(topics),
		"map[ac_select:suggestions search_click:search_click_v1 search_impression:search_impression_v1]")
	for _, want := range []string{"--search-topics", "search-topics", "search-attempts"} {
		if code, help, _ := run(t.Context(), nil, "--help"); code != 0 || !strings.Contains(help, want) {
			t.Errorf("the help does not say %s", want)
		}
	}
}

// What may not be recorded is refused with a reason, in the same way as elsewhere.
func TestSearchRefusals(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	c := newAnalytics(t, dir, p.addr, "alice")
	nobody := analyticsv1connect.NewAnalyticsServiceClient(http.DefaultClient, "http://"+p.addr)
	foreign, old, large := searchClick("c"), searchClick("c"), searchClick("c")
	foreign.GetSearchClick().UserId = "bob"
	old.OccurredAt = timestamppb.New(time.Now().Add(-8 * 24 * time.Hour))
	large.Event = &analyticsv1.SearchEvent_AcImpression{AcImpression: &searchv1.AcImpression{SearchId: "s"}}
	for range 17 {
		large.GetAcImpression().Suggestions = append(large.GetAcImpression().GetSuggestions(), strings.Repeat("x", 4096))
	}
	many := make([]*analyticsv1.SearchEvent, 101)
	for i := range many {
		many[i] = searchClick("c")
	}
	for name, x := range map[string]struct {
		events []*analyticsv1.SearchEvent
		code   connect.Code
		says   string
	}{
		"nothing":        {nil, connect.CodeInvalidArgument, "events"},
		"no event":       {[]*analyticsv1.SearchEvent{{}}, connect.CodeInvalidArgument, "event"},
		"101":            {many, connect.CodeInvalidArgument, "events"},
		"somebody else":  {[]*analyticsv1.SearchEvent{searchClick("c"), foreign}, connect.CodePermissionDenied, "user_id"},
		"eight days ago": {[]*analyticsv1.SearchEvent{old}, connect.CodeInvalidArgument, "occurred_at"},
		"too large":      {[]*analyticsv1.SearchEvent{large}, connect.CodeResourceExhausted, "bytes"},
	} {
		_, err := c.RecordBatch(t.Context(), &analyticsv1.RecordBatchRequest{Events: x.events})
		if connect.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, expected %v with %q", name, err, x.code, x.says)
		}
	}
	if _, err := nobody.Record(t.Context(), &analyticsv1.RecordRequest{Event: searchClick("c")}); connect.CodeOf(err) !=
		connect.CodeUnauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if res, err := c.RecordBatch(t.Context(), &analyticsv1.RecordBatchRequest{Events: many[:100]}); err != nil ||
		len(res.GetEventIds()) != 100 {
		t.Errorf("100 events: %v", err)
	}
}

// TestKillSearch kills the real binary again and again while events are recorded: between
// commit, publication and deletion, wherever it happens to be. Each event that was answered
// is on Kafka, and what comes twice is the same record.
func TestKillSearch(t *testing.T) {
	besides(t)
	rng := rand.New(rand.NewPCG(testkit.Seed(t, rand.Uint64()), 4))
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	ctx, progress := untilStuck(t, 2*time.Minute)
	addr := p.addr
	var mu sync.Mutex
	more := sync.NewCond(&mu)
	answered := map[string]bool{}
	write, stop := context.WithCancel(ctx)
	defer stop()
	var writing sync.WaitGroup
	for w := range 6 {
		c := newAnalytics(t, dir, addr, []string{"alice", "bob"}[w%2])
		writing.Go(func() {
			for n := 0; write.Err() == nil; n++ {
				req := &analyticsv1.RecordBatchRequest{}
				for i := range 1 + rand.N(100) {
					req.Events = append(req.Events, searchClick(fmt.Sprint(w, "-", n, "-", i)))
				}
				res, err := call(ctx, c.RecordBatch, req) // until it is answered
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, id := range res.GetEventIds() {
					if answered[id] {
						t.Errorf("%s was given twice", id)
					}
					answered[id] = true
				}
				more.Broadcast()
				mu.Unlock()
			}
		})
	}
	wait := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		for want := len(answered) + n; len(answered) < want; {
			more.Wait()
		}
	}
	kills := 0
	for range testkit.Rounds(t, "PARLEY_KILLS", 3) {
		kills++
		progress()
		wait(500 + rng.IntN(3000))
		p.kill()
		p = launch(t, dir, addr)
	}
	wait(500)
	stop()
	writing.Wait()
	progress()
	found := readSearch(ctx, t, p, dir, answered, "search_click_v1")
	t.Logf("%d kills, %d events answered, %d on Kafka", kills, len(answered), len(found))
}
