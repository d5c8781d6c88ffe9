package topic

import (
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A session that begins while the service stops ends like those before it: its member must
// not wait for messages that another owner has.
func TestAttachWhileStopping(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		before := x.attach("t", "g", "before")
		x.stop()
		late, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: "late"}, false)
		testkit.Must(t, err)
		for _, s := range []*Session{before, late} {
			e, err := s.Receive(t.Context(), 1)
			testkit.Must(t, err)
			testkit.Equal(t, s.Options().Member+" is notified", e.Gone, "DRAINING")
		}
		x.stop = func() {}
	})
}
