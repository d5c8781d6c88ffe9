package searchrelay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
)

// refuse makes partitions refuse their records, as brokers do: the whole transaction is aborted.
func (f *fixture) refuse(refuses func(kafka.Partition) bool, why error) {
	f.fail = func(records []*kafka.Record) (error, error) {
		results := make(kgo.ProduceResults, len(records))
		for i, r := range records {
			results[i].Record = r
			if refuses(kafka.Partition{Topic: r.Topic, ID: r.Partition}) {
				results[i].Err = why
			}
		}
		if results.FirstErr() == nil {
			return nil, nil
		}
		return kafka.Refused(results), nil
	}
}

func ofTopic(topics ...string) func(kafka.Partition) bool {
	return func(p kafka.Partition) bool { return slices.Contains(topics, p.Topic) }
}

// counts returns how often each event is in the log.
func (f *fixture) counts() map[string]int {
	n := map[string]int{}
	for _, r := range f.log {
		n[header(r, "event_id")]++
	}
	return n
}

// A topic that refuses its records for long stops no other topic, also if the events were
// recorded with one call. Nothing is published twice meanwhile, nothing is lost, and the relay
// says what waits and for how long.
func TestOneTopicRefuses(t *testing.T) { inBothModes(t, oneTopicRefuses) }

func oneTopicRefuses(t *testing.T, deletes bool) {
	f := newFixture(t, "")
	f.deletes = deletes
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	r := f.relay()
	var ids []string
	for i := range 30 {
		ids = append(ids, f.record(fmt.Sprint("user", i%3), six()...)...)
		_ = f.cycles(r)
		testkit.Equal(t, "records", len(f.log), 5*(i+1))
	}
	testkit.Equal(t, "rows that wait", f.waiting(), 30)
	list := r.Waiting()
	if at := list["search_click_v1"]; len(list) != 1 || at < 29*time.Minute || at > 31*time.Minute {
		t.Errorf("waiting: %v, expected clicks of 30 minutes", list)
	}
	if s := r.Stats(); s.Oldest < 29*time.Minute || s.Unavailable == 0 {
		t.Errorf("%+v", s)
	}
	for id, n := range f.counts() {
		if n != 1 {
			t.Errorf("%s was published %d times", id, n)
		}
	}
	f.refuse(ofTopic(), nil)
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records at the end", len(f.log), 180)
	testkit.Equal(t, "different records", len(f.counts()), len(ids))
	testkit.Equal(t, "rows that wait at the end", f.waiting(), 0)
	testkit.Equal(t, "topics that wait at the end", len(r.Waiting()), 0)
}

// A relay that ends while a topic refuses leaves the row in the outbox: the next one publishes all
// of it again.
func TestEndWhileATopicRefuses(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	ids := f.record("alice", six()...)
	_ = f.cycles(f.relay())
	testkit.Equal(t, "records", len(f.log), 5)
	f.refuse(ofTopic(), nil)
	testkit.Must(t, f.cycles(f.relay()))
	testkit.Equal(t, "records of the next relay", len(f.log), 11)
	testkit.Equal(t, "different records", len(f.counts()), len(ids))
}

// More rows than the relay remembers wait as a whole, in order, and rows without records for the same
// partitions do not wait.
func TestRowsBeyondThoseRemembered(t *testing.T) {
	f := newFixture(t, "search_click=clicks:aggregate")
	f.aside = 3
	f.refuse(ofTopic("clicks"), kerr.NotEnoughReplicas)
	r := f.relay()
	for i := range 10 {
		f.record("alice", &searchv1.SearchClick{SearchId: "s", ResultId: strconv.Itoa(i)},
			&searchv1.SearchDwell{SearchId: "s", ResultId: strconv.Itoa(i)})
		f.record("bob", &searchv1.AcSelect{SearchId: "s", Suggestion: strconv.Itoa(i)})
		_ = f.cycles(r)
	}
	testkit.Equal(t, "records", len(f.log), 13)
	f.refuse(ofTopic(), nil)
	for range 3 {
		testkit.Must(t, f.cycles(r))
	}
	testkit.Equal(t, "records at the end", len(f.log), 30)
	testkit.Equal(t, "rows that wait at the end", f.waiting(), 0)
	checkOrder(t, f.log, map[string]bool{"clicks": true})
}

// Dead letters that are refused wait like other records.
func TestDeadLettersRefused(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1", "search_click_v1.dlq"), kerr.MessageTooLarge)
	f.record("alice", six()...)
	r := f.relay()
	for range 20 {
		_ = f.cycles(r)
	}
	f.record("bob", &searchv1.SearchDwell{SearchId: "s1", ResultId: "r"})
	_ = f.cycles(r)
	testkit.Equal(t, "records", len(f.log), 6)
	testkit.Equal(t, "rows that wait", f.waiting(), 1)
	f.refuse(ofTopic("search_click_v1"), kerr.MessageTooLarge)
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "rows that wait at the end", f.waiting(), 0)
	if last := f.log[len(f.log)-1]; len(f.log) != 7 || last.Topic != "search_click_v1.dlq" {
		t.Errorf("%d records, the last in %s", len(f.log), last.Topic)
	}
}

// More refused records than one transaction holds do not stand before the others, although a
// transaction of nothing else names no partition.
func TestManyRefusedRecords(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	clicks := make([]search.Content, 100)
	for i := range clicks {
		clicks[i] = &searchv1.SearchClick{SearchId: "s", ResultId: strconv.Itoa(i)}
	}
	f.record("alice", &searchv1.SearchDwell{SearchId: "s", ResultId: "r"})
	for range 30 { // in one stream
		f.record("alice", clicks...)
	}
	r := f.relay()
	for range 3 {
		_ = f.cycles(r)
	}
	for i := range 5 {
		f.record("bob", &searchv1.SearchDwell{SearchId: "s", ResultId: strconv.Itoa(i)})
		_ = f.cycles(r)
	}
	testkit.Equal(t, "records", len(f.log), 6)
	f.refuse(ofTopic(), nil)
	for range 3 {
		testkit.Must(t, f.cycles(r))
	}
	testkit.Equal(t, "different records at the end", len(f.counts()), 3_006)
}

// A relay that starts while a transaction's worth of refused records waits remembers no refusal, and
// the first transaction has nothing else: the other topics are published all the same.
func TestStartBehindManyRefusedRecords(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	clicks := make([]search.Content, 100)
	for i := range clicks {
		clicks[i] = &searchv1.SearchClick{SearchId: "s", ResultId: strconv.Itoa(i)}
	}
	for range 30 {
		f.record("alice", clicks...)
	}
	f.record("alice", &searchv1.SearchDwell{SearchId: "s", ResultId: "r"})
	r := f.relay()
	_ = f.cycles(r)
	testkit.Equal(t, "records", len(f.log), 1)
	f.refuse(ofTopic(), nil)
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "different records at the end", len(f.counts()), 3_001)
}

// What is no refusal of a partition, such as a full log or a full disk, is repeated by the cycle, also
// if each partition of the transaction refused records before: it makes no partition wait longer.
func TestFullLogIsNoRefusal(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	f.record("alice", &searchv1.SearchClick{SearchId: "s", ResultId: "r"})
	r := f.relay()
	testkit.Must(t, r.Cycle(t.Context()))
	full := errors.New("the log has no room")
	f.fail = func([]*kafka.Record) (error, error) { return full, nil }
	f.now = f.now.Add(2 * time.Second)
	if err := r.Cycle(t.Context()); !errors.Is(err, full) {
		t.Errorf("%v, expected that %v", err, full)
	}
	f.refuse(ofTopic(), nil)
	f.now = f.now.Add(2 * time.Second) // the next sweep
	testkit.Must(t, r.Cycle(t.Context()))
	testkit.Equal(t, "records once there is room", len(f.log), 1)
}

// What several partitions refuse for good becomes dead letters, also if the transactions have
// nothing else.
func TestSeveralTopicsRefuseForGood(t *testing.T) {
	f := newFixture(t, "")
	f.refuse(ofTopic("search_click_v1", "search_dwell_v1"), kerr.MessageTooLarge)
	f.record("alice", &searchv1.SearchClick{SearchId: "s", ResultId: "r"},
		&searchv1.SearchDwell{SearchId: "s", ResultId: "r"})
	r := f.relay()
	for range 3 {
		_ = f.cycles(r)
	}
	testkit.Equal(t, "rows that wait", f.waiting(), 0)
	testkit.Equal(t, "dead letters", strings.Join(f.dead, "\n"), "srch_1-1 of search_click_v1: "+
		kerr.MessageTooLarge.Error()+"\nsrch_1-2 of search_dwell_v1: "+kerr.MessageTooLarge.Error())
	for i, topic := range []string{"search_click_v1.dlq", "search_dwell_v1.dlq"} {
		if len(f.log) != 2 || f.log[i].Topic != topic {
			t.Errorf("%d records, expected 2, one of them in %s", len(f.log), topic)
		}
	}
}

// A backoff that ends within a pass lets no record overtake an earlier one of its search.
func TestBackoffEndsWithinAPass(t *testing.T) {
	f := newFixture(t, "search_click=clicks:aggregate")
	click := func(result string) search.Content { return &searchv1.SearchClick{SearchId: "s", ResultId: result} }
	f.refuse(ofTopic("clicks"), kerr.NotEnoughReplicas)
	f.record("alice", click("first"))
	r := f.relay()
	testkit.Must(t, r.Cycle(t.Context()))
	f.now = f.now.Add(2 * time.Second)
	testkit.Must(t, r.Cycle(t.Context())) // the next attempt is 4 s later
	f.now = f.now.Add(2 * time.Second)
	f.refuse(ofTopic(), nil)
	dwells := make([]search.Content, 100)
	for i := range dwells {
		dwells[i] = &searchv1.SearchDwell{SearchId: "s", ResultId: strconv.Itoa(i)}
	}
	for range 20 { // as many as one transaction holds
		f.record("alice", dwells...)
	}
	f.record("alice", click("second"))
	f.took = 3 * time.Second
	testkit.Must(t, r.Cycle(t.Context()))
	testkit.Equal(t, "records of the pass", len(f.log), 2_000)
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records", len(f.log), 2_002)
	checkOrder(t, f.log, map[string]bool{"clicks": true})
}

// Whatever refuses when, and whatever outcome is lost: each event is published, and events of one search that a topic
// keeps in order are published in order. Where publishing deletes the rows, only those are published again
// that were published in part.
func TestRefusalSchedules(t *testing.T) { inBothModes(t, refusalSchedules) }

func refusalSchedules(t *testing.T, deletes bool) {
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		f := newFixture(t, "search_click=clicks:aggregate,search_dwell=dwells:aggregate")
		f.deletes = deletes
		whole := deletes && seed%3 == 0 // nothing is refused
		f.aside = 1 + rnd.IntN(20)
		topics := []string{"clicks", "dwells", "ac_select_v1"}
		r := f.relay()
		n := 0
		for range 40 {
			did := rnd.IntN(8)
			if whole {
				did = 2 + did%3
			}
			switch did {
			case 0:
				f.refuse(ofTopic(topics[:rnd.IntN(4)]...), kerr.NotEnoughReplicas)
				rnd.Shuffle(3, func(i, j int) { topics[i], topics[j] = topics[j], topics[i] })
			case 1:
				odd := int32(rnd.IntN(2))
				f.refuse(func(p kafka.Partition) bool { return p.ID%2 == odd }, kerr.LeaderNotAvailable)
			case 2:
				f.fail = func([]*kafka.Record) (error, error) { return nil, errors.New("the answer is lost") }
			case 3:
				f.refuse(ofTopic(), nil)
			case 4:
				r = f.relay()
			}
			var list []search.Content
			for range 1 + rnd.IntN(4) {
				id := "s" + strconv.Itoa(rnd.IntN(3))
				list = append(list, []search.Content{&searchv1.SearchClick{SearchId: id, ResultId: "r"},
					&searchv1.SearchDwell{SearchId: id, ResultId: "r"},
					&searchv1.AcSelect{SearchId: id, Suggestion: "x"}}[rnd.IntN(3)])
			}
			n += len(f.record(fmt.Sprint("user", rnd.IntN(3)), list...))
			f.took = time.Duration(rnd.IntN(3)) * time.Second
			for range rnd.IntN(4) {
				_ = r.Cycle(t.Context())
				f.now = f.now.Add(time.Duration(rnd.IntN(5_000)) * time.Millisecond)
			}
		}
		f.refuse(ofTopic(), nil)
		f.took = 0
		for range 4 {
			testkit.Must(t, f.cycles(r))
		}
		if whole && len(f.log) != n {
			t.Fatalf("seed %d: %d records of %d events", seed, len(f.log), n)
		}
		if len(f.counts()) != n || f.waiting() != 0 || len(r.Waiting()) != 0 {
			t.Fatalf("seed %d: %d of %d events, %d rows wait, %v", seed, len(f.counts()), n, f.waiting(), r.Waiting())
		}
		if !checkOrder(t, f.log, map[string]bool{"clicks": true, "dwells": true}) {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkOrder checks that the first occurrences of a stream's events in each partition of topics are in
// the order in which they were recorded.
func checkOrder(t *testing.T, log []*kafka.Record, topics map[string]bool) bool {
	t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, r := range log {
		id := header(r, "event_id")
		if !topics[r.Topic] || seen[id] {
			continue
		}
		seen[id] = true
		stream, number, _ := strings.Cut(id, "-")
		n := testkit.Value(strconv.Atoi(number))(t)
		position := fmt.Sprint(stream, r.Topic, r.Partition)
		if n < last[position] {
			t.Errorf("%s is in %s/%d behind number %d", id, r.Topic, r.Partition, last[position])
			return false
		}
		last[position] = n
	}
	return true
}
