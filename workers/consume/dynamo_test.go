package consume

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Attempts are counted on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestOutcomes, TestRestartContinues, TestDeadLetterBeforeCommit, TestPoison)
}

// So they are while a third of all requests is refused, lost or loses its answer.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 15, TestRestartContinues, TestDeadLetterBeforeCommit)
}
