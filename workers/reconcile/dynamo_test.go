package reconcile_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// What crashes leave half done is completed on DynamoDB, too, also while requests fail
// and lose their answers.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestCompletesCreations, TestCorrectsCounts, TestWindow, TestOneSickChat,
		TestAuditReachesEveryChat, TestRoundContinuesElsewhere, TestOvertakenPassDoesNotResetTheRound, TestRefusedPosition)
}

func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 7, TestCompletesCreations, TestCorrectsCounts)
}

func TestRunOnDynamoDB(t *testing.T) { dynamotest.RerunOutside(t, nil, TestRun) }
