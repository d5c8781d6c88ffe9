package acl_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/acl"
)

// A cluster that has never had a group makes the place for them when it is asked for the
// first time, which takes a while: workers start on it nevertheless.
func TestCheckOnANewCluster(t *testing.T) {
	topics := []kfake.Opt{kfake.NumBrokers(1)}
	for _, topic := range kafka.Topics() {
		topics = append(topics, kfake.SeedTopics(topic.Partitions, topic.Name))
	}
	cluster, err := kfake.NewCluster(topics...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	asked := 0
	cluster.ControlKey(int16(kmsg.FindCoordinator), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked++
		res := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
		res.ErrorCode = kerr.CoordinatorNotAvailable.Code
		for _, key := range req.(*kmsg.FindCoordinatorRequest).CoordinatorKeys {
			one := kmsg.NewFindCoordinatorResponseCoordinator()
			one.Key, one.ErrorCode = key, kerr.CoordinatorNotAvailable.Code
			res.Coordinators = append(res.Coordinators, one)
		}
		return res, nil, true
	})
	c, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RetryTimeout(100*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := acl.Check(t.Context(), c, "", acl.Fanout); err != nil || asked == 0 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
}
