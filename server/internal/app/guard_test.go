package app_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
	"github.com/parley-chat/parley/server/load/probe"
	"github.com/parley-chat/parley/server/load/rpc"
	"github.com/parley-chat/parley/server/load/stream"
	"github.com/parley-chat/parley/server/store"
	embeddedstore "github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
)

// Bounds of what an operation may cost beside the committed figures. Allocations hardly
// differ between machines. Processor time counts in calibrations of the same run, and beside
// figures of the same processor: another one takes 0.6 to 2.3 times as many calibrations,
// because system calls and switches between goroutines cost it more, or less, than hashing.
const (
	moreAllocations = 1.10
	moreCPU         = 1.5
	muchLess        = 0.8 // below it the figures should be taken again
	guardRounds     = 5
	guardFile       = "testdata/costs.json"
)

// cost is what one operation takes.
type cost struct {
	Allocations float64 `json:"allocations"`
	Bytes       float64 `json:"bytes"`
	CPU         float64 `json:"-"` // in calibrations; 0: not known of this processor
}

// costs are those of operations by name.
type costs map[string]cost

// TestCosts holds allocations and processor time of a few operations against committed
// figures. It needs a minute and a machine that is not full: PARLEY_TEST_COSTS=check says that
// they are there, PARLEY_TEST_COSTS=update writes the figures.
func TestCosts(t *testing.T) {
	mode := os.Getenv("PARLEY_TEST_COSTS")
	switch {
	case mode == "":
		t.Skip("PARLEY_TEST_COSTS=check or update")
	case probe.ProcessorTime() == 0:
		t.Skip("this system does not say what a process uses")
	}
	processor := probe.Machine().Model
	file, committed := readFigures(t, processor)
	if mode != "update" && committed["event encoded"].CPU == 0 {
		fmt.Printf("notice: processor time is not compared: %s has no figures of %q; PARLEY_TEST_COSTS=update adds them\n",
			guardFile, processor)
	}
	got := costs{}
	for _, o := range guarded {
		t.Run(o.name, func(t *testing.T) {
			for range 3 { // what others do on the machine makes smaller batches, which cost more; nothing makes it cost less
				now := measureCost(o.ops, o.begin(t))
				t.Logf("%+v", now)
				if before, again := got[o.name]; again {
					now = cost{min(now.Allocations, before.Allocations), min(now.Bytes, before.Bytes), min(now.CPU, before.CPU)}
				}
				got[o.name] = now
				was, known := committed[o.name]
				if dearer, _ := (costs{o.name: was}).compare(costs{o.name: now}); !known || len(dearer) == 0 {
					return
				}
			}
		})
	}
	if mode == "update" {
		writeFigures(t, processor, file, got)
		return
	}
	dearer, cheaper := committed.compare(got)
	if len(cheaper) > 0 {
		t.Logf("cheaper: PARLEY_TEST_COSTS=update keeps it so:\n%s", strings.Join(cheaper, "\n"))
	}
	if len(dearer) > 0 {
		t.Errorf("dearer than %s:\n%s", guardFile, strings.Join(dearer, "\n"))
	}
}

// compare lists what became dearer than it may, and what became much cheaper.
func (committed costs) compare(got costs) (dearer, cheaper []string) {
	for _, name := range slices.Sorted(maps.Keys(committed)) {
		if _, ok := got[name]; !ok {
			dearer = append(dearer, name+" was not measured")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		was, ok := committed[name]
		if !ok {
			dearer = append(dearer, name+" has no committed figures")
			continue
		}
		for _, c := range []struct {
			what     string
			was, now float64
			more     float64
			slack    float64 // for operations of a few allocations, of which one more is too many
		}{
			{"allocations", was.Allocations, got[name].Allocations, moreAllocations, 0.25},
			{"bytes", was.Bytes, got[name].Bytes, moreAllocations, 1},
			{"CPU", was.CPU, got[name].CPU, moreCPU, 0},
		} {
			line := fmt.Sprintf("%s: %s %.4g, before %.4g", name, c.what, c.now, c.was)
			switch {
			case c.what == "CPU" && c.was == 0: // not known of this processor
			case c.now > c.was*c.more+c.slack:
				dearer = append(dearer, line)
			case c.now < c.was*muchLess-c.slack:
				cheaper = append(cheaper, line)
			}
		}
	}
	return dearer, cheaper
}

// The guard itself: what it must notice, and what it must let pass.
func TestCompareCosts(t *testing.T) {
	was := costs{"send": {Allocations: 100, Bytes: 1000, CPU: 2}}
	for name, tt := range map[string]struct {
		now             costs
		dearer, cheaper int
	}{
		"the same":         {was, 0, 0},
		"within bounds":    {costs{"send": {109, 1090, 2.9}}, 0, 0},
		"more allocations": {costs{"send": {112, 1000, 2}}, 1, 0},
		"more bytes":       {costs{"send": {100, 1120, 2}}, 1, 0},
		"more CPU":         {costs{"send": {100, 1000, 3.1}}, 1, 0},
		"all of it":        {costs{"send": {200, 2000, 4}}, 3, 0},
		"cheaper":          {costs{"send": {50, 500, 1}}, 0, 3},
		"not measured":     {costs{}, 1, 0},
		"not committed":    {costs{"send": was["send"], "read": {}}, 1, 0},
	} {
		dearer, cheaper := was.compare(tt.now)
		if len(dearer) != tt.dearer || len(cheaper) != tt.cheaper {
			t.Errorf("%s: dearer %q, cheaper %q", name, dearer, cheaper)
		}
	}
}

// measureCost runs operations several times, each beside a calibration, and takes the least
// of each: what else happens on the machine only adds.
func measureCost(ops int, o operation) cost {
	if o.prepare == nil {
		o.prepare = func(int) {}
	}
	o.prepare(ops / 4)
	o.run(ops / 4) // what is kept from then on is no cost of an operation
	var allocations, bytes, used, unit []float64
	for range guardRounds {
		o.prepare(ops)
		unit = append(unit, float64(calibrate()))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := probe.ProcessorTime()
		o.run(ops)
		used = append(used, float64(probe.ProcessorTime()-began)/float64(ops))
		runtime.ReadMemStats(&after)
		allocations = append(allocations, float64(after.Mallocs-before.Mallocs)/float64(ops))
		bytes = append(bytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(ops))
	}
	return cost{rounded(slices.Min(allocations)), rounded(slices.Min(bytes)), rounded(slices.Min(used) / slices.Min(unit))}
}

// rounded keeps three digits: what lies beyond differs each time.
func rounded(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// calibrate is the processor time of a fixed piece of work: hashing, allocating and looking
// up, as servers do.
func calibrate() time.Duration {
	const times = 2_000
	block, seen := make([]byte, 4<<10), map[[8]byte][]byte{}
	runtime.GC()
	began := probe.ProcessorTime()
	for i := range times {
		block[0], block[1] = byte(i), byte(i>>8)
		sum := sha256.Sum256(block)
		for j := range 4 {
			key := [8]byte(sum[8*j:])
			seen[key] = append([]byte(nil), sum[:]...)
		}
		if len(seen) > 1_000 {
			clear(seen)
		}
	}
	return (probe.ProcessorTime() - began) / times
}

// operation is how to do n operations. prepare, if given, makes n possible, and is not measured.
type operation struct{ run, prepare func(n int) }

// guarded are the operations.
var guarded = []struct {
	name  string
	ops   int
	begin func(t *testing.T) operation
}{
	{"event encoded", 50_000, guardEvent},
	{"frame encoded", 50_000, guardFrame},
	{"send, embedded store, 16 callers", 4_000, guardSend},
	{"delivery to 100 streams in the hub", 1_000, guardHub},
	{"read by RPC, client included", 4_000, guardRead},
	{"send by RPC, 16 callers, client included", 4_000, guardRPCSend},
	{"send by RPC to 50 streams, client included", 1_000, guardStreams},
	{"message consumed, of a backlog of 64 chats", 4_000, guardFold},
}

var guardText = strings.Repeat("x", 128)

func guardMessage(i int) *eventv1.MessagePersisted {
	return &eventv1.MessagePersisted{Metadata: &eventv1.EventMetadata{Version: int64(i) + 1, MembershipVersion: 1},
		ChatId: "chat_00000000000000000000000001", MessageId: "msg_00000000000000000000000001", Sequence: int64(i),
		SenderId: "ann", Content: guardText}
}

func guardEvent(t *testing.T) operation {
	m := guardMessage(7)
	return operation{run: func(n int) {
		for range n {
			if _, err := event.Marshal(m); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

func guardFrame(t *testing.T) operation {
	m := guardMessage(7)
	return operation{run: func(n int) {
		for range n {
			if _, err := frame.Of(m, 7).Wire(); err != nil {
				t.Fatal(err)
			}
		}
	}}
}

// guardChats are chats over a store, of two members each.
func guardChats(t *testing.T, cfg chat.Config, chats int, members ...string) (*chat.Service, []string) {
	cfg.Clock, cfg.Producer = time.Now, "guard"
	s, err := chat.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range members {
		if err := s.EnsureUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	ids := make([]string, chats)
	for i := range ids {
		c, err := s.CreateGroup(t.Context(), chat.CreateGroup{Caller: members[0], Name: "g", Members: members[1:]})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = c.ChatID
	}
	return s, ids
}

func guardSend(t *testing.T) operation {
	st, err := embeddedstore.Open(embeddedstore.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	s, ids := guardChats(t, chat.Config{Store: st, Generation: st.Generation()}, 64, "ann", "ben")
	return operation{run: func(n int) {
		each(n, 16, func(i int) {
			if _, err := s.Send(t.Context(), chat.Send{Caller: "ann", ChatID: ids[i%64], Content: guardText}); err != nil {
				t.Error(err)
			}
		})
	}}
}

func guardHub(t *testing.T) operation {
	const streams = 100
	var (
		st    = storetest.NewMemory(time.Now)
		hub   *delivery.Hub
		names = make([]string, streams)
		open  []*delivery.Stream
	)
	for i := range names {
		names[i] = fmt.Sprintf("user%d", i)
	}
	s, ids := guardChats(t, chat.Config{Store: st, Generation: "g", Committed: func(c chat.Commit) {
		if hub != nil {
			hub.Deliver(delivery.Of(c.Events))
		}
	}}, 1, names...)
	reader := view.New(view.Config{Store: st, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	hub, err := delivery.New(delivery.Config{History: store.Line("g"), Process: "p", Source: reader, Clock: time.Now,
		NewID: chat.NewID, Delivered: s.Delivered})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		st, err := hub.Open(t.Context(), delivery.OpenParams{
			Principal: auth.Principal{UserID: name, SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)},
		})
		if err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			if done, err = st.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			st.Take(256)
		}
		open = append(open, st)
	}
	return operation{run: func(n int) {
		for range n {
			if _, err := s.Send(t.Context(), chat.Send{Caller: names[0], ChatID: ids[0], Content: guardText}); err != nil {
				t.Fatal(err)
			}
			for _, st := range open {
				if _, frames, _ := st.Take(256); len(frames) != 1 {
					t.Fatalf("%d frames", len(frames))
				}
			}
		}
	}}
}

// guardServer is a whole server, with the durable path but for its consumers, and members of
// one group.
type guardServer struct {
	t      *testing.T
	held   *app.Held
	target rpc.Target
	tokens []string
	pool   *rpc.Pool
	chats  []string
}

func newGuardServer(t *testing.T, relay bool, chats, members int) *guardServer {
	dir := t.TempDir()
	held := app.StartHeld(t, relay, "--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen",
		"127.0.0.1:0", "--data-dir", dir, "--max-requests", "0")
	key, err := auth.ReadKey(filepath.Join(dir, auth.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	g := &guardServer{t: t, held: held, target: rpc.Target{Address: held.Addr, Protocol: rpc.Connect}}
	g.pool = rpc.NewPool(g.target)
	t.Cleanup(g.pool.Close)
	var names []string
	for i := range members {
		token, err := key.Issue(fmt.Sprint("user", i), time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		g.tokens, names = append(g.tokens, token), append(names, fmt.Sprint("user", i))
		g.call(g.pool, i, chatv1connect.ChatServiceListChatsProcedure, nil)
	}
	for range chats {
		var res chatv1.CreateChatResponse
		b := g.call(g.pool, 0, chatv1connect.ChatServiceCreateChatProcedure,
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "g", MemberIds: names[1:]})
		if err := proto.Unmarshal(b, &res); err != nil {
			t.Fatal(err)
		}
		g.chats = append(g.chats, res.GetOverview().GetChat().GetChatId())
	}
	return g
}

func (g *guardServer) call(c rpc.Caller, user int, procedure string, req proto.Message) []byte {
	message, err := proto.Marshal(req)
	if err == nil {
		message, err = c.Call(context.Background(), g.tokens[user], procedure, message)
	}
	if err != nil {
		g.t.Error(err)
	}
	return message
}

func (g *guardServer) send(i int) {
	_, err := g.pool.Call(context.Background(), g.tokens[0], messagev1connect.MessageServiceSendMessageProcedure,
		stream.SendRequest(g.chats[i%len(g.chats)], "", []byte(guardText)))
	if err != nil {
		g.t.Error(err)
	}
}

func guardRead(t *testing.T) operation {
	g := newGuardServer(t, false, 1, 2)
	req := &chatv1.GetChatRequest{ChatId: g.chats[0]}
	return operation{run: func(n int) {
		each(n, 4, func(int) { g.call(g.pool, 0, chatv1connect.ChatServiceGetChatProcedure, req) })
	}}
}

func guardRPCSend(t *testing.T) operation {
	g := newGuardServer(t, true, 64, 2)
	return operation{run: func(n int) { each(n, 16, g.send) }}
}

// guardFold is what the consumers take for a message: of a backlog of fixed size, all of it
// published before they start.
func guardFold(t *testing.T) operation {
	g, sent := newGuardServer(t, true, 64, 2), int64(0)
	return operation{
		prepare: func(n int) {
			each(n, 16, g.send)
			sent += int64(n)
			testkit.Eventually(t, "all events are published", func() bool {
				return scrape(t, g.held.Addr, "parley_relay_published_total") >= float64(g.held.Committed.Load())
			})
		},
		run: func(int) { g.held.Fold(t.Context(), sent) },
	}
}

func guardStreams(t *testing.T) operation {
	const members = 50
	// A transaction of the relay, about one a second, would have few events among so many frames.
	g := newGuardServer(t, false, 1, members)
	var arrived atomic.Int64
	for i := range members {
		c, err := g.target.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		l, err := stream.Listen(c, g.tokens[i], stream.Handler{
			Message: func(*stream.Listener, stream.Frame) { arrived.Add(1) }})
		if err == nil {
			err = l.Await(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return operation{run: func(n int) {
		want := arrived.Load() + int64(n*members)
		each(n, 16, g.send)
		for arrived.Load() < want && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}}
}
