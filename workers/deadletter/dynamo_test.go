package deadletter

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Outcomes of dead letters are kept on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestListAndGet, TestRedrive, TestRedriveTakesTurns, TestDiscard, TestForeignRecords)
}

// So they are while a third of all requests is refused, lost or loses its answer.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 16, TestListAndGet, TestDiscard)
}
