package topicstore_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
)

// A broker that is killed and comes back, under load: what was acknowledged is there, once
// each, whatever became of the transactions that were under way.
func TestBrokerKilled(t *testing.T) {
	b := apache(t)
	fresh(t, b, 6)
	reopen := func() *topicstore.Log {
		for {
			l, err := topicstore.Open(t.Context(), config(b, 6, time.Now))
			if err == nil {
				t.Cleanup(l.Close)
				if err = l.Create(t.Context(), orders(b)); err == nil {
					return l
				}
			}
			if t.Context().Err() != nil {
				t.Error(err)
				return nil
			}
			time.Sleep(100 * time.Millisecond) // real: as long as the broker is away
		}
	}
	const publishes = 40
	var done atomic.Int64
	publisher := make(chan struct{})
	go func() {
		defer close(publisher)
		l := reopen()
		for n := int64(0); n < publishes && t.Context().Err() == nil; {
			_, err := l.Append(t.Context(), publish("p", n))
			switch {
			case err == nil:
				n = done.Add(1)
			case errors.Is(err, commitlog.ErrFenced):
				l = reopen()
			}
		}
	}()
	testkit.Eventually(t, "messages are published", func() bool { return done.Load() >= publishes/2 })
	b.Trouble(t, "kill", kafkatest.Process(1))
	time.Sleep(time.Second) // real: the broker is away
	b.Trouble(t, "start", kafkatest.Process(1))
	<-publisher
	all := contents(t, reopen())
	for payload, times := range all {
		if times != 1 {
			t.Errorf("%q stands there %d times", payload, times)
		}
	}
	if len(all) != publishes*3 {
		t.Errorf("%d messages, not %d", len(all), publishes*3)
	}
}
