package topic

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// GetProducer has the highest numbers that are stored, to callers who may publish, and makes no topic.
func TestGetProducer(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Partitions: 4})
		ask := func(c Caller, topic, producer string) (*topicv1.GetProducerResponse, error) {
			return x.Producer(t.Context(), c, &topicv1.GetProducerRequest{Topic: topic, Producer: producer})
		}
		none, err := ask(op, "t", "p")
		testkit.Must(t, err)
		testkit.Equal(t, "nothing was published", proto.Equal(none, &topicv1.GetProducerResponse{}), true)
		for n := range int64(100) {
			r := numberedRequest(2*n+1, fmt.Sprint(n), "x")
			r.Messages = append(r.Messages, messages(int(n), 2)...)
			_, err := x.Publish(t.Context(), op, r)
			testkit.Must(t, err)
		}
		for range 2 {
			got, err := ask(op, "t", "p")
			testkit.Must(t, err)
			testkit.Equal(t, "last", got.GetLastNumber(), 199)
			testkit.Equal(t, "remembered", len(got.GetNumbers()), 64)
			for i, n := range got.GetNumbers() {
				if n.GetNumber() != int64(2*(36+i)+1) || n.GetMessages() != 3 || n.GetPublishTime().AsTime().IsZero() {
					t.Errorf("the %dth is %v", i, n)
				}
			}
			other, err := ask(op, "t", "q")
			testkit.Must(t, err)
			testkit.Equal(t, "another producer's", other.GetLastNumber(), 0)
			x.restart()
		}
		for _, topic := range []string{"t", "none", "t.dlq"} {
			_, err = ask(Caller{Principal: "eve"}, topic, "p")
			refusedAs(t, err, refusal.TopicForbidden)
		}
		_, err = ask(op, "none", "p")
		refusedAs(t, err, refusal.TopicNotFound)
		_, err = ask(op, "t.dlq", "p")
		refusedAs(t, err, refusal.TopicForbidden)
		for role, want := range map[topicv1.Role]bool{
			topicv1.Role_ROLE_PUBLISHER: true, topicv1.Role_ROLE_SUBSCRIBER: false,
		} {
			bind := &topicv1.SetBindingRequest{Topic: "t", Principal: "ann", Role: role}
			testkit.Must(t, x.SetBinding(t.Context(), op, bind))
			if _, err := ask(Caller{Principal: "ann"}, "t", "p"); (err == nil) != want {
				t.Errorf("%v: %v", role, err)
			}
		}
	})
}
