package topic

import (
	"fmt"
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// numberedRequest is a request of producer p whose message has a key.
func numberedRequest(number int64, key, payload string) *topicv1.PublishRequest {
	return &topicv1.PublishRequest{Topic: "t", Producer: &topicv1.Producer{Id: "p", Number: number},
		Messages: []*topicv1.TopicMessage{{Key: key, Payload: []byte(payload)}}}
}

// A producer that begins with its first number again is refused, whatever it publishes and
// wherever that goes, and nothing is stored: it never takes a refusal, or another message, for its own.
func TestProducerThatBeginsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 8})
		x.subscribe("t", "g", nil)
		for n := range int64(20) { // keys of all partitions
			if _, err := x.Publish(t.Context(), op, numberedRequest(n+1, fmt.Sprint(n), "first run")); err != nil {
				t.Fatal(err)
			}
		}
		for restarts := range 2 {
			for n := range int64(20) {
				for key := range 20 {
					r := numberedRequest(n+1, fmt.Sprint(key), "second run")
					if key%2 == 0 { // the key alone differs, or nothing
						r.Messages[0].Payload = []byte("first run")
					}
					res, err := x.Publish(t.Context(), op, r)
					if key%2 == 0 && int64(key) == n {
						if err != nil || !res.GetResults()[0].GetReplayed() {
							t.Errorf("%d restarts, the same request: %v, %v", restarts, res, err)
						}
						continue
					}
					refusedAs(t, err, refusal.ProducerNumberReused)
				}
			}
			x.restart()
		}
		if n := len(x.receive(x.attach("t", "g", "m"))); n != 20 {
			t.Errorf("%d messages", n)
		}
	})
}
