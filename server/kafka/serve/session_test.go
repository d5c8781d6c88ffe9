package serve_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
)

// Each step of a session is on what the last one left of it.
func TestSessions(t *testing.T) {
	for _, version := range []int16{7, 12, 13, 18} {
		b := start(t, open)
		b.log.append(first, record(1), record(1))
		b.log.append(second, record(1))
		c := b.raw(t)
		var id, epoch int32
		step := func(what string, req *kmsg.FetchRequest, want string) {
			t.Helper()
			req.SessionID, req.SessionEpoch = id, epoch
			res := c.fetch(t, req)
			testkit.Equal(t, fmt.Sprint(version, " ", what), text(t, res), want)
			if res.ErrorCode == 0 {
				id, epoch = res.SessionID, epoch+1
			}
		}
		none := func() *kmsg.FetchRequest { return fetchOf(version) }
		step("start", fetchOf(version, at(first, 0), at(second, 1)),
			"events/0 code 0 [0,2) 0 1 next 2; events/1 code 0 [0,1)")
		if id == 0 {
			t.Fatal("no session")
		}
		step("a new offset", fetchOf(version, at(first, 2)), "")
		step("no news", none(), "")
		b.log.append(second, record(1))
		step("a record", none(), "events/1 code 0 [0,2) 1 next 2")
		step("the same record, which was not read", none(), "events/1 code 0 [0,2) 1 next 2")
		step("another partition", fetchOf(version, at(third, 0), at(second, 2)), "letters/0 code 0 [0,0)")
		b.log.trim(first, 1)
		step("a new start", none(), "events/0 code 0 [1,2)")
		step("an error", fetchOf(version, at(first, 0)), "events/0 code 1 [-1,-1)")
		step("again", none(), "events/0 code 1 [-1,-1)")
		step("repaired", fetchOf(version, at(first, 2)), "events/0 code 0 [1,2)")
		forget := none()
		ft := kmsg.NewFetchRequestForgottenTopic()
		ft.Topic, ft.TopicID, ft.Partitions = events, [16]byte{1}, []int32{0, 3}
		forget.ForgottenTopics = append(forget.ForgottenTopics, ft)
		step("forgotten", forget, "")
		b.log.append(first, record(1))
		b.log.append(third, record(1))
		step("the others", none(), "letters/0 code 0 [0,1) 0 next 1")
		ok := id
		epoch++
		step("a wrong epoch", none(), "code 71")
		epoch--
		id++
		step("a wrong session", none(), "code 70")
		id = ok
		if version != 13 {
			other := fetchOf(map[bool]int16{true: 12, false: 18}[version >= 13])
			step("names instead of ids", other, "code 106")
		}
		step("goes on", none(), "letters/0 code 0 [0,1) 0 next 1")
		ft.Topic, ft.TopicID, ft.Partitions = deadLetters, [16]byte{2}, []int32{0}
		forget.ForgottenTopics = append(forget.ForgottenTopics, ft)
		ft.Topic, ft.TopicID, ft.Partitions = events, [16]byte{1}, []int32{1}
		forget.ForgottenTopics = append(forget.ForgottenTopics, ft)
		step("empty", forget, "")
		testkit.Equal(t, "the session of an empty one", id, 0)
		id = ok
		step("gone", none(), "code 70")
		epoch = 0
		step("another one", fetchOf(version, at(first, 3)), "events/0 code 0 [1,3)")
		end := fetchOf(version, at(first, 3))
		ok, epoch = id, -1
		step("without a session", end, "events/0 code 0 [1,3)")
		id, epoch = ok, 1
		step("ended", none(), "code 70")
		id, epoch = 0, 0
		step("on another connection", fetchOf(version, at(first, 3)), "events/0 code 0 [1,3)")
		c = b.raw(t)
		step("is not known", none(), "code 70")
	}
}

// The partitions of a session take turns where there is not room for all.
func TestPartitionsTakeTurns(t *testing.T) {
	b := start(t, open)
	for range 10 {
		for _, p := range []kafka.Partition{first, second, third} {
			b.log.append(p, record(1000))
		}
	}
	c := b.raw(t)
	req := fetchOf(12, at(first, 0), at(second, 0), at(third, 0))
	req.MaxBytes = 1
	var order []string
	for i := range int32(6) {
		req.SessionEpoch = i
		res := c.fetch(t, req)
		for _, rt := range res.Topics {
			for _, p := range rt.Partitions {
				if len(p.RecordBatches) > 0 {
					order = append(order, fmt.Sprint(rt.Topic, p.Partition))
				}
			}
		}
		req = fetchOf(12)
		req.MaxBytes, req.SessionID = 1, res.SessionID
	}
	testkit.Equal(t, "order", strings.Join(order, " "), "events0 events1 letters0 events0 events1 letters0")
}

// A session has a bound: beyond it the client must start another one.
func TestSessionIsBounded(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	request := func(from int32) *kmsg.FetchRequest {
		req := fetchOf(12, at(first, 0))
		p := req.Topics[0].Partitions[0]
		req.Topics[0].Partitions = nil
		for i := range int32(20_000) {
			p.Partition = from + i
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
		}
		return req
	}
	req := request(0)
	req.SessionEpoch = 0
	id := c.fetch(t, req).SessionID
	req = request(20_000)
	req.SessionID, req.SessionEpoch = id, 1
	testkit.Equal(t, "code", c.fetch(t, req).ErrorCode, kerr.FetchSessionIDNotFound.Code)
	testkit.Equal(t, "connections that ended", b.ended(), 0)
}
