package callcount_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/callcount"
)

func opened(t *testing.T, tap *callcount.Tap, err error) *callcount.Tap {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tap.Close)
	return tap
}

func TestDynamoDB(t *testing.T) {
	answers := map[string]string{
		"GetItem":            `{"Item":{},"ConsumedCapacity":{"TableName":"x_meta","CapacityUnits":0.5}}`,
		"TransactWriteItems": `{"ConsumedCapacity":[{"TableName":"x_chats","CapacityUnits":2.0},{"TableName":"x_events","CapacityUnits":4.0}]}`,
		"BatchWriteItem":     `{"UnprocessedItems":{}}`,
	}
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answers[operation])
	}))
	defer back.Close()
	tap, err := callcount.DynamoDB(back.URL, func(name string) string { return strings.TrimPrefix(name, "x_") })
	opened(t, tap, err)
	bodies := map[string]string{
		"GetItem":            `{"TableName":"x_meta"}`,
		"TransactWriteItems": `{"TransactItems":[{"Put":{"TableName":"x_events"}},{"Update":{"TableName":"x_chats"}},{"Put":{"TableName":"x_events"}}]}`,
		"BatchWriteItem":     `{"RequestItems":{"x_outbox":[]}}`,
	}
	for operation, body := range bodies {
		req, err := http.NewRequest(http.MethodPost, "http://"+tap.Addr(), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+operation)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(got) != answers[operation] {
			t.Errorf("%s is answered with %s", operation, got)
		}
	}
	counts := tap.Counts()
	for name, want := range map[string]callcount.Count{
		"GetItem meta": {1, int64(len(bodies["GetItem"])), int64(len(answers["GetItem"])), 0.5},
		"TransactWriteItems chats+events": {1, int64(len(bodies["TransactWriteItems"])),
			int64(len(answers["TransactWriteItems"])), 6},
		"BatchWriteItem outbox": {1, int64(len(bodies["BatchWriteItem"])), int64(len(answers["BatchWriteItem"])),
			0},
	} {
		if counts[name] != want {
			t.Errorf("%s: %+v, not %+v", name, counts[name], want)
		}
	}
	if sum := counts.Of("GetItem", "Transact"); sum.Calls != 2 || sum.Units != 6.5 {
		t.Errorf("sum %+v of %v", sum, counts)
	}
	if rest := counts.Since(counts); len(rest) != 0 {
		t.Errorf("nothing has come, and is counted: %v", rest)
	}
}

// A server of few words.
func TestRedis(t *testing.T) {
	answers := map[string]string{"hello": "*0\r\n", "ping": "+PONG\r\n", "publish": ":1\r\n"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, answers[strings.TrimSpace(line)])
				}
			}()
		}
	}()
	tap, err := callcount.Redis(l.Addr().String(), func(key string) string { return key[:1] })
	opened(t, tap, err)
	c := redis.NewClient(&redis.Options{Addr: tap.Addr(), Protocol: 2, DisableIdentity: true, PoolSize: 1})
	defer c.Close()
	ctx := context.Background()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	var before callcount.Counts
	testkit.Eventually(t, "the client's first ping and its answers are counted", func() bool {
		before = tap.Counts()
		return before["PING"].Calls == 1 && before[callcount.RedisAnswers].In ==
			int64(len(answers["ping"]))+before.Of("HELLO").Calls*int64(len(answers["hello"]))
	})
	p := c.Pipeline()
	for i := range 3 {
		p.Publish(ctx, "channel", strings.Repeat("x", i))
	}
	p.Ping(ctx)
	_, _ = p.Exec(ctx)
	var got callcount.Counts
	testkit.Eventually(t, "the pipeline and its answers are counted", func() bool {
		got = tap.Counts().Since(before)
		answered := int64(3*len(answers["publish"])+len(answers["ping"])) + got.Of("HELLO").Calls*int64(len(answers["hello"]))
		return got["PING"].Calls > 0 && got[callcount.RedisTrips].Calls > got.Of("HELLO").Calls &&
			got[callcount.RedisAnswers].In >= answered
	})
	// *3 $7 publish $7 channel $N …, each line with its end.
	size := int64(0)
	for i := range 3 {
		size += int64(len(fmt.Sprintf("*3\r\n$7\r\npublish\r\n$7\r\nchannel\r\n$%d\r\n%s\r\n", i, strings.Repeat("x", i))))
	}
	hello := got.Of("HELLO").Calls // the client may reconnect
	if got["PUBLISH c"].Calls != 3 || got["PUBLISH c"].Out != size || got["PING"].Calls != 1 ||
		got[callcount.RedisTrips].Calls != 1+hello {
		t.Errorf("counted\n%v, want 3 times PUBLISH with %d bytes, a PING, one trip", got, size)
	}
	if got[callcount.RedisAnswers].In != int64(3*len(answers["publish"])+len(answers["ping"]))+
		hello*int64(len(answers["hello"])) {
		t.Errorf("answers: %+v", got[callcount.RedisAnswers])
	}
}

// A producer and a consumer of a cluster of three talk to taps only.
func TestKafka(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(6, "topic"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	tap, err := callcount.Kafka(cluster.ListenAddrs()...)
	opened(t, tap, err)
	c, err := kgo.NewClient(kgo.SeedBrokers(tap.Addrs()...), kgo.ConsumeTopics("topic"), kgo.ConsumerGroup("group"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	for i := range 6 {
		r := &kgo.Record{Topic: "topic", Partition: int32(i), Value: []byte("hello")}
		if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; n < 6; {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		n += f.NumRecords()
	}
	// A tap passes an answer on before it counts the call.
	testkit.Eventually(t, "all calls are counted", func() bool {
		got := tap.Counts()
		return got["Produce"].Calls == 6 && got["Produce"].In > 0 && got["Fetch"].Calls > 0 &&
			got["FindCoordinator"].Calls > 0 && got["JoinGroup"].Calls > 0
	})
	// Whatever it talks to, it knows by the address of a tap.
	listens := map[string]bool{}
	for _, a := range tap.Addrs() {
		listens[a] = true
	}
	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range meta.Brokers {
		if addr := net.JoinHostPort(b.Host, fmt.Sprint(b.Port)); !listens[addr] {
			t.Errorf("the client hears of a broker at %s", addr)
		}
	}
	if len(meta.Brokers) != 3 {
		t.Errorf("%d brokers", len(meta.Brokers))
	}
}

type links struct {
	linkv1connect.UnimplementedLinkServiceHandler
}

func (links) Send(context.Context, *linkv1.SendRequest) (*linkv1.SendResponse, error) {
	return &linkv1.SendResponse{}, nil
}

func (links) Ack(context.Context, *linkv1.AckRequest) (*linkv1.AckResponse, error) {
	return &linkv1.AckResponse{}, nil
}

func TestLink(t *testing.T) {
	back := httptest.NewUnstartedServer(nil)
	mux := http.NewServeMux()
	mux.Handle(linkv1connect.NewLinkServiceHandler(links{}))
	back.Config.Handler, back.Config.Protocols = mux, new(http.Protocols)
	back.Config.Protocols.SetUnencryptedHTTP2(true)
	back.Start()
	defer back.Close()
	tap, err := callcount.Link(back.Listener.Addr().String())
	opened(t, tap, err)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	c := linkv1connect.NewLinkServiceClient(&http.Client{Transport: tr}, "http://"+tap.Addr())
	big := strings.Repeat("x", 100<<10) // many frames
	for _, req := range []*linkv1.SendRequest{{From: "a"}, {Deliveries: []*linkv1.Delivery{{ChatId: "c"}}},
		{Receipts: []*linkv1.Receipt{{UserId: big}}}} {
		if _, err := c.Send(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Ack(t.Context(), &linkv1.AckRequest{}); err != nil {
		t.Fatal(err)
	}
	var got callcount.Counts
	testkit.Eventually(t, "the acknowledgement is counted", func() bool { // which may be after its answer has come
		got = tap.Counts()
		return got["Ack"].Calls > 0
	})
	if got[callcount.LinkSend].Calls != 2 || got[callcount.LinkKeepalive].Calls != 1 || got["Ack"].Calls != 1 ||
		got[callcount.LinkSend].Out < 100<<10 || got[callcount.LinkAnswers].In == 0 {
		t.Errorf("counted\n%v", got)
	}
}
