package replay

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Events are chosen and put back into the outbox on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestReplay, TestReplayLeavesNewEventsAlone, TestReplayOfWhatCannotBePublished)
}

// So they are while a third of all requests is refused, lost or loses its answer.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 17, TestReplayLeavesNewEventsAlone)
}
