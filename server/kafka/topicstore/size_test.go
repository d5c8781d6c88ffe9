package topicstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
)

// A topic with a bound has segments that are small beside it: brokers never remove the one that is written to. They
// follow the bound when it changes, also for the next owner, and are never smaller than a batch.
func TestSegmentsOfABound(t *testing.T) { each(t, testSegmentsOfABound) }

func testSegmentsOfABound(t *testing.T, b *kafkatest.Broker) {
	l := fresh(t, b, 3)
	admin := kadm.NewClient(b.Client(t))
	for i, tt := range []struct {
		bytes int64
		want  string
	}{{partitions * 8 << 24, "16777216"}, {partitions * 8 << 25, "33554432"}, {1 << 20, "10485760"},
		{1 << 50, "1073741824"}, {partitions * 8 << 26, "67108864"}, {0, ""}} {
		if i == 1 {
			l.Close()
			l = open(t, b, 3, time.Now)
		}
		topic := orders(b)
		topic.Bytes = tt.bytes
		testkit.Must(t, l.Create(t.Context(), topic))
		// A broker that is asked may learn of a change later than the one that was asked for it.
		testkit.Succeeds(t, "the size of segments", func() error {
			got, err := admin.DescribeTopicConfigs(t.Context(), record.Name(topic.Name))
			testkit.Must(t, err)
			segment := ""
			for _, c := range got[0].Configs {
				if c.Key == "segment.bytes" && c.Source.String() == "DYNAMIC_TOPIC_CONFIG" {
					segment = c.MaybeValue()
				}
			}
			if segment != tt.want {
				return fmt.Errorf("a topic of %d bytes has segments of %q, want %q", tt.bytes, segment, tt.want)
			}
			return nil
		})
	}
}
