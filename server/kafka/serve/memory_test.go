package serve_test

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/serve"
)

// piped serves a client by a pipe, which has no buffer: an answer is under way until the client reads it. It
// returns a channel with the end of the connection.
func piped(t *testing.T, s *serve.Server) (*raw, chan error) {
	ours, theirs := pipe(t)
	end := make(chan error, 1)
	go func() { end <- s.Serve(t.Context(), theirs, "anyone") }()
	return &raw{Conn: ours}, end
}

func pipe(t *testing.T) (ours, theirs net.Conn) {
	ours, theirs = net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	return ours, theirs
}

// Answers that clients do not read take the memory that there is and no more. The others wait in order, and
// an answer that makes no progress for 20 seconds ends its connection and lets them continue. Requests with small
// answers do not wait.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMemoryLog(topics()...)
		for range 100 {
			l.append(first, record(100_000))
		}
		groups := new(groupsDouble)
		s := testkit.Value(serve.New(serve.Config{Log: l, Groups: groups, AnswerMemory: 16 << 20}))(t)
		var conns []*raw
		var ends []chan error
		for range 5 {
			c, end := piped(t, s)
			conns, ends = append(conns, c), append(ends, end)
			testkit.Must(t, c.ask(fetchOf(12, at(first, 0))))
			synctest.Wait()
		}
		testkit.Equal(t, "answers under way", l.reads, 2)
		small, _ := piped(t, s)
		testkit.Value(small.send(usual(int16(kmsg.Heartbeat), 4)))(t)

		testkit.Value(conns[0].answer(fetchOf(12), 1))(t) // makes room for the third
		synctest.Wait()
		testkit.Equal(t, "answers under way", l.reads, 3)
		testkit.Must(t, conns[3].Close()) // it need not wait any longer
		synctest.Wait()
		testkit.Equal(t, "the end of one that waits", len(ends[3]), 1)

		time.Sleep(20 * time.Second) // the second and the third have not read
		synctest.Wait()
		testkit.Equal(t, "ends", []int{len(ends[0]), len(ends[1]), len(ends[2]), len(ends[4])}, []int{0, 1, 1, 0})
		testkit.Value(conns[4].answer(fetchOf(12), 1))(t)
		testkit.Equal(t, "answers", l.reads, 4)
	})
}

// A client that reads slowly keeps its connection as long as it takes a part of the answer in time.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMemoryLog(topics()...)
		for range 10 {
			l.append(first, record(100_000))
		}
		s := testkit.Value(serve.New(serve.Config{Log: l, Groups: new(groupsDouble)}))(t)
		c, end := piped(t, s)
		testkit.Must(t, c.ask(fetchOf(12, at(first, 0))))
		for range 3 {
			time.Sleep(19 * time.Second)
			testkit.Value(c.Read(make([]byte, 256<<10)))(t)
		}
		synctest.Wait()
		testkit.Equal(t, "ends", len(end), 0)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		testkit.Equal(t, "ends", len(end), 1)
	})
}

// Large answers share what remains: each fetch has 1 MiB at least.
func TestLargeAnswersLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []kafka.Position
		l := newMemoryLog(kafka.Topic{Name: events, ID: [16]byte{1}, Partitions: 10})
		for i := range int32(10) {
			p := kafka.Partition{Topic: events, ID: i}
			for range 11 {
				l.append(p, record(100_000))
			}
			list = append(list, at(p, 0))
		}
		s := testkit.Value(serve.New(serve.Config{Log: l, Groups: new(groupsDouble), AnswerMemory: 64 << 20}))(t)
		var conns []*raw
		for range 3 { // 32 MiB in three forms: the first has 8 MiB, the others less
			c, _ := piped(t, s)
			testkit.Must(t, c.ask(fetchOf(12, list...)))
			synctest.Wait()
			conns = append(conns, c)
		}
		var sizes []int
		for _, c := range conns {
			size := 0
			for _, rt := range testkit.Value(c.answer(fetchOf(12), 1))(t).(*kmsg.FetchResponse).Topics {
				for _, p := range rt.Partitions {
					size += len(p.RecordBatches)
				}
			}
			sizes = append(sizes, size/1_000_000)
		}
		testkit.Equal(t, "megabytes", sizes, []int{8, 4, 1})
	})
}

// A fetch that has some records, but too few, waits for a second at most: it holds its memory meanwhile. One
// without any waits as long as its client wants, and holds none.
func TestHeldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newMemoryLog(topics()...)
		l.append(first, record(1))
		s := testkit.Value(serve.New(serve.Config{Log: l, Groups: new(groupsDouble), AnswerMemory: 8 << 20}))(t)
		idle := make([]*raw, 0, 100)
		for range 100 {
			c, _ := piped(t, s)
			req := fetchOf(12, at(second, 0))
			req.MaxWaitMillis = 3600_000
			testkit.Must(t, c.ask(req))
			idle = append(idle, c)
		}
		c, _ := piped(t, s)
		req := fetchOf(12, at(first, 0))
		req.MaxWaitMillis, req.MinBytes = 3600_000, 1<<20
		began := time.Now()
		testkit.Must(t, c.ask(req))
		testkit.Equal(t, "answer", text(t, testkit.Value(c.answer(req, 1))(t).(*kmsg.FetchResponse)),
			"events/0 code 0 [0,1) 0 next 1")
		testkit.Equal(t, "waited", time.Since(began), time.Second)
		synctest.Wait()
		testkit.Equal(t, "idle fetches", l.waits(), 100)
		time.Sleep(time.Hour)
		for _, c := range idle {
			testkit.Value(c.answer(req, 1))(t)
		}
	})
}
