package topic

import (
	"fmt"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// warn logs a warning of the server, once as long as it stays the same. The caller holds mu.
func (r *run) warn(what, text string) {
	if text == r.warned[what] {
		return
	}
	r.warned[what] = text
	if text != "" {
		r.cfg.Log.Warn("topic: "+what, "topic", r.topic, "group", r.group, "details", text)
	}
}

// warnReleased logs which messages the group does not get although they were due to it, but for those
// that a request moved it past.
func (r *run) warnReleased(n *topicv1.ReleasedMessages) {
	var list []string
	for _, x := range []struct {
		cause string
		n     int64
	}{
		{"death", n.GetDeath()}, {"bound", n.GetBound()}, {"retention", n.GetRetention()},
		{"zombie", n.GetZombie()}, {"forced", n.GetForced()},
	} {
		if x.n > 0 {
			list = append(list, fmt.Sprintf("%d by %s", x.n, x.cause))
		}
	}
	r.warn("messages that were due to the group were taken from it", strings.Join(list, ", "))
}

// warnStalled logs in which partitions nothing comes although messages wait.
func (r *run) warnStalled(stalls []*topicv1.Stall) {
	var list []string
	for _, s := range stalls {
		list = append(list, fmt.Sprintf("partition %d: %s", s.GetPartition(), s.GetText()))
	}
	r.warn("the group is stalled", strings.Join(list, "; "))
}
