//go:build !windows

package app_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// parts are the engines without anything of ours above them but their clients.
type parts struct {
	in    *fleet
	redis *redis.Client
	topic string
	txn   []*kafka.Client
	n     atomic.Int64
}

const (
	publishers = 8 // as many as relays have slots
	partitions = 64
)

func newParts(in *fleet) *parts {
	in.t.Helper()
	o, err := redis.ParseURL(os.Getenv("PARLEY_TEST_REDIS"))
	if err != nil {
		in.t.Fatal(err)
	}
	o.PoolSize = 64
	id := strings.ToLower(rand.Text()[:10])
	p := &parts{in: in, redis: redis.NewClient(o), topic: "bench." + id}
	in.t.Cleanup(func() { _ = p.redis.Close() })
	for i := range publishers {
		c, err := kafka.NewTransactional(in.kafka, fmt.Sprintf("bench.%s.%d", id, i))
		if err != nil {
			in.t.Fatal(err)
		}
		in.t.Cleanup(c.Close)
		p.txn = append(p.txn, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = p.topic, partitions, -1
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 30_000
	res, err := req.RequestWith(in.bench.ctx, p.txn[0])
	if err == nil {
		err = kerr.ErrorForCode(res.Topics[0].ErrorCode)
	}
	if err != nil {
		in.t.Fatal(err)
	}
	for i := range p.txn { // every one knows the topic, and its id is known
		in.poll("the topic is not there", func() bool { return p.publish(i, 1) == nil })
	}
	return p
}

// transact is a transaction of the shape of a send: as many writes, of the same kinds and
// about the same sizes, in the same tables, with conditions on as many.
func (p *parts) transact(int) error {
	id := fmt.Sprintf("bench_%026d", p.n.Add(1))
	text := func(n int) store.Attr {
		return store.Attr{Name: "content", Value: store.String(strings.Repeat("x", n))}
	}
	return p.in.store.Transact(p.in.bench.ctx, store.Plan{Token: rand.Text(), Writes: []store.Write{
		{Op: store.OpUpdate, Key: table.UserChatKey(id, id),
			Update: store.Update{Set: []store.Attr{{Name: "n", Value: store.Int(1)}}}, Cond: store.Condition{}.Without("left"),
			Name: "member"},
		{Op: store.OpPut, Key: table.HeadKey(id), Item: store.NewItem(text(300)), Cond: store.Absent(), Name: "head"},
		{Op: store.OpPut, Key: table.RequestKey(id), Item: store.NewItem(text(150)), Cond: store.Absent(), Name: "request"},
		{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: id, SK: table.Number(1)}, Item: store.NewItem(text(350))},
		{Op: store.OpPut, Key: store.Key{Table: store.Events, PK: id, SK: table.Number(1)}, Item: store.NewItem(text(550))},
		{Op: store.OpPut, Key: store.Key{Table: store.Outbox, PK: "bench", SK: id}, Item: store.NewItem(text(50))},
	}})
}

// put is one write without a transaction.
func (p *parts) put(int) error {
	id := fmt.Sprintf("bench_%026d", p.n.Add(1))
	return p.in.store.Transact(p.in.bench.ctx, store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: id, SK: table.Number(1)},
			Item: store.NewItem(store.Attr{Name: "content", Value: store.String(strings.Repeat("x", 350))})},
	}})
}

// publish publishes records in one transaction, over the partitions that a relay's slot has.
func (p *parts) publish(caller, records int) error {
	const each = partitions / publishers
	list := make([]*kafka.Record, records)
	for i := range list {
		list[i] = &kafka.Record{Topic: p.topic, Partition: int32(caller%publishers*each + i%each),
			Key: []byte("chat_01HZY7M3N4P5Q6R7S8T9V0WXYZ"), Value: make([]byte, 400)}
	}
	return kafka.Transact(p.in.bench.ctx, p.txn[caller%publishers], list)
}

func (p *parts) ping(int) error { return p.redis.Ping(p.in.bench.ctx).Err() }

// lookup asks where n users are who have a row each.
func (p *parts) lookup(b *testing.B, n int) func(int) error {
	s := routing.Server{ID: "bench", Addr: "127.0.0.1:1", Generation: "bench", Epoch: 1}
	users := make([]string, n)
	for i := range users {
		users[i] = fmt.Sprintf("bench%03d", i)
	}
	if err := p.in.routing.Claim(p.in.bench.ctx, s, time.Minute); err != nil {
		b.Fatal(err)
	}
	if _, err := p.in.routing.Put(p.in.bench.ctx, s, users, time.Minute); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.in.routing.Release(p.in.bench.ctx, s) })
	return func(int) error {
		got, err := p.in.routing.Lookup(p.in.bench.ctx, users)
		if err == nil && len(got) != n {
			err = fmt.Errorf("%d of %d users are known", len(got), n)
		}
		return err
	}
}

// bench measures each part alone.
func (p *parts) bench(b *testing.B) {
	run := func(name string, callers int, f func(int) error) {
		b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
			var list []driven
			for range rounds {
				list = append(list, drive(b, callers, 300*time.Millisecond, f))
			}
			report(b, "calls", list)
		})
	}
	for _, callers := range []int{1, 8, 64} {
		run("dynamodb-transaction", callers, p.transact)
		run("dynamodb-put", callers, p.put)
		run("redis-ping", callers, p.ping)
	}
	for _, n := range []int{2, 100} {
		f := p.lookup(b, n)
		for _, callers := range []int{1, 8} { // lanes of a server
			run(fmt.Sprintf("redis-lookup-%d", n), callers, f)
		}
	}
	for _, records := range []int{1, 50, 500} {
		for _, callers := range []int{1, publishers} {
			run(fmt.Sprintf("kafka-transaction-%d", records), callers, func(c int) error { return p.publish(c, records) })
		}
	}
}

// send sends a message and returns what became of it.
func (in *fleet) send(u *user, id, text string) error {
	_, err := u.messages.SendMessage(in.bench.ctx, &messagev1.SendMessageRequest{ChatId: id, Content: text})
	return err
}
