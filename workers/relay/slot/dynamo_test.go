package slot

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Leases on DynamoDB are taken, kept and lost as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.RerunOutside(t,
		TestSlotsAreSpread, TestLostLeaseStopsBeforeTheSuccessorStarts, TestRenewalWithUnknownOutcome, TestRunThatEndsBeginsAgain,
		TestLeasesOfTheDead, TestRandomFailures)
}
