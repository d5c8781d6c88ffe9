package lease

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Leases on DynamoDB are acquired, kept and lost as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.RerunOutside(t, nil,
		TestSlotsAreSpread, TestLostLeaseStopsBeforeTheSuccessorStarts, TestRenewalWithUnknownOutcome,
		TestEndedRunIsRestarted, TestLeasesOfDeadProcesses, TestRandomFailures)
}

// So they are while a third of all requests is refused or conflicts with another transaction.
// The tests themselves lose answers.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunOutside(t, dynamotest.Random(13), TestLostLeaseStopsBeforeTheSuccessorStarts,
		TestLeasesOfDeadProcesses,
		TestRandomFailures)
}
