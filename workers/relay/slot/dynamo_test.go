package slot

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Leases on DynamoDB are taken, kept and lost as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.RerunOutside(t, nil,
		TestSlotsAreSpread, TestLostLeaseStopsBeforeTheSuccessorStarts, TestRenewalWithUnknownOutcome, TestRunThatEndsBeginsAgain,
		TestLeasesOfTheDead, TestRandomFailures)
}

// So they are while a third of all requests is refused or meets another transaction; that
// answers are lost is part of the tests.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunOutside(t, dynamotest.Random(13), TestLostLeaseStopsBeforeTheSuccessorStarts, TestLeasesOfTheDead, TestRandomFailures)
}
