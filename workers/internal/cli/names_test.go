package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/workers/fanout"
	"github.com/parley-chat/parley/workers/internal/jobs"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// Rights on Kafka are declared for the names that jobs take.
func TestRightsAreForTheNamesInUse(t *testing.T) {
	if fanout.Group != acl.FanoutGroup {
		t.Errorf("fanout's group is %q, rights are for %q", fanout.Group, acl.FanoutGroup)
	}
	if projection.Group != acl.ProjectorGroup {
		t.Errorf("the projector's group is %q, rights are for %q", projection.Group, acl.ProjectorGroup)
	}
	for i := range jobs.MaxSlots {
		s := slot.Numbered(i, jobs.MaxSlots)
		if !strings.HasPrefix(s.TransactionalID, acl.RelayTransactions) {
			t.Errorf("rights are for %s*, not for %s", acl.RelayTransactions, s.TransactionalID)
		}
	}
	if got := acl.Of(jobs.Relay, jobs.Fanout, jobs.Projector, jobs.Operators); len(got) != 4 {
		t.Errorf("jobs have the roles %v", got)
	}
	for _, topic := range fanout.Topics() {
		if kafka.Partitions(topic) == 0 || topic == kafka.DeadLetters ||
			!slices.ContainsFunc(acl.Rights(), func(r acl.Right) bool { return r.Role == acl.Fanout && r.Name == topic }) {
			t.Errorf("fanout has no right on %s", topic)
		}
	}
}
