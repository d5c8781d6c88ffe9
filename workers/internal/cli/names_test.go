package cli

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/workers/internal/jobs"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// Rights on Kafka are declared for the names that jobs take.
func TestRightsAreForTheNamesInUse(t *testing.T) {
	for i := range jobs.MaxSlots {
		s := slot.Numbered(i, jobs.MaxSlots)
		if !strings.HasPrefix(s.TransactionalID, acl.RelayTransactions) {
			t.Errorf("rights are for %s*, not for %s", acl.RelayTransactions, s.TransactionalID)
		}
	}
	if got := acl.Of(jobs.Relay, jobs.Fanout, jobs.Projector, jobs.Operators); len(got) != 4 {
		t.Errorf("jobs have the roles %v", got)
	}
}
