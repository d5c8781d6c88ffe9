package lag_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/lag"
)

func broker(t *testing.T) string {
	t.Helper()
	return kafkatest.InProcess(t).Addr
}

// publish writes records in one transaction, which ends with a control record.
func publish(t *testing.T, addr string, records ...*kafka.Record) {
	t.Helper()
	c, err := kafka.NewTransactional(addr, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := kafka.Transact(t.Context(), c, records); err != nil {
		t.Fatal(err)
	}
}

// Spans are read whole, one partition after the other, in order, and parts of them
// only as far as asked for; control records are none.
func TestRead(t *testing.T) {
	addr := broker(t)
	spans, err := lag.Spans(t.Context(), addr, kafka.DeadLetters)
	if err != nil || len(spans) != 8 || spans[3].Partition != (kafka.Partition{Topic: kafka.DeadLetters, ID: 3}) ||
		spans[3].To != 0 {
		t.Fatalf("%+v, %v", spans, err)
	}
	for range 3 {
		var records []*kafka.Record
		for n := range 900 {
			records = append(records, &kafka.Record{Topic: kafka.DeadLetters, Partition: int32(n % 3), Value: []byte("x")})
		}
		publish(t, addr, records...)
	}
	if spans, err = lag.Spans(t.Context(), addr, kafka.DeadLetters); err != nil {
		t.Fatal(err)
	}
	var last kafka.Record
	n := 0
	read := func(r *kafka.Record) error {
		if r.Partition < last.Partition || r.Partition == last.Partition && r.Offset <= last.Offset && n > 0 {
			t.Fatalf("%d/%d after %d/%d", r.Partition, r.Offset, last.Partition, last.Offset)
		}
		last = *r
		n++
		return nil
	}
	if err := lag.Read(t.Context(), addr, spans, read); err != nil || n != 2700 {
		t.Fatalf("%d records, %v", n, err)
	}
	n, last = 0, kafka.Record{}
	spans[0].To, spans[1].From, spans[2].From = 5, spans[1].To-3, spans[2].To
	if err := lag.Read(t.Context(), addr, spans, read); err != nil || n != 5+2 { // the last is a control record
		t.Fatalf("%d records, %v", n, err)
	}
	enough := errors.New("enough")
	if err := lag.Read(t.Context(), addr, spans, func(*kafka.Record) error { return enough }); !errors.Is(err, enough) {
		t.Fatal(err)
	}
}

// K-168: a group is described with its members, and with how far each partition is.
func TestGroup(t *testing.T) {
	addr := broker(t)
	if _, err := lag.OfGroup(t.Context(), addr, "nobody"); !errors.Is(err, lag.ErrNoGroup) {
		t.Fatal(err)
	}
	var records []*kafka.Record
	for n := range 40 {
		records = append(records, &kafka.Record{Topic: kafka.ChatsCreated, Partition: int32(n % 4),
			Key: fmt.Append(nil, "chat", n%4), Value: []byte("x")})
	}
	publish(t, addr, records...)
	s, err := kafka.NewSession(kafka.SessionConfig{Addr: addr, Group: "readers", Topics: []string{kafka.ChatsCreated},
		Assigned: func([]kafka.Partition) {}, Gone: func([]kafka.Partition, bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	read := map[kafka.Partition]int64{}
	for len(read) < 4 {
		batch, err := s.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for p := range batch {
			read[p] = 10
		}
		s.Done()
	}
	first := kafka.Partition{Topic: kafka.ChatsCreated, ID: 2}
	if err := s.Commit(ctx, map[kafka.Partition]int64{first: 7}); err != nil {
		t.Fatal(err)
	}
	g, err := lag.OfGroup(ctx, addr, "readers")
	if err != nil || g.State != "Stable" || len(g.Members) != 1 || g.Members[0].Partitions != 16 ||
		len(g.Partitions) != 16 {
		t.Fatalf("%+v, %v", g, err)
	}
	for _, p := range g.Partitions {
		switch {
		case p.Partition == first && (p.Committed != 7 || p.From != 7 || p.Lag != 3),
			p.Partition.ID == 1 && (p.Committed != -1 || p.From != 0 || p.Lag != 10), p.Partition.ID > 3 && p.Lag != 0,
			p.Member != g.Members[0].ID:
			t.Errorf("%+v", p)
		}
	}
	if g.Partitions[0].Lag < g.Partitions[3].Lag || g.Lag != 33 { // without the markers of transactions
		t.Fatalf("%+v", g)
	}
	// Who has read everything is not behind, wherever it has committed: at the last record,
	// or past the marker of its transaction.
	all := map[kafka.Partition]int64{}
	for id := range int32(4) {
		all[kafka.Partition{Topic: kafka.ChatsCreated, ID: id}] = 10 + int64(id%2)
	}
	if err := s.Commit(ctx, all); err != nil {
		t.Fatal(err)
	}
	if g, err = lag.OfGroup(ctx, addr, "readers"); err != nil || g.Lag != 0 || g.Partitions[0].Lag != 0 {
		t.Fatalf("%+v, %v", g, err)
	}
	s.Close()
	if g, err = lag.OfGroup(ctx, addr, "readers"); err != nil || g.State != "Empty" || len(g.Members) != 0 ||
		g.Partitions[0].Member != "" {
		t.Fatalf("%+v, %v", g, err)
	}
}

// K-166: the embedded broker is its own only replica, and misses none.
func TestUnderReplicated(t *testing.T) {
	if n, err := lag.UnderReplicated(t.Context(), broker(t), kafka.Topics()); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}

// Records that are not there any more when they are read are not waited for.
func TestReadOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &kfake.VirtualNetwork{}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(network.Listen), kfake.SeedTopics(1, "t"))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		began := time.Now()
		spans := []lag.Span{{Partition: kafka.Partition{Topic: "t"}, From: 0, To: 5}}
		err = lag.Read(t.Context(), cluster.ListenAddrs()[0], spans, func(*kafka.Record) error { return nil },
			kgo.Dialer(network.DialContext))
		if err == nil || !strings.Contains(err.Error(), "t/0: nothing came") || time.Since(began) > time.Minute {
			t.Fatal(time.Since(began), err)
		}
	})
}
