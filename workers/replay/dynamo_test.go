package replay

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Events are chosen and put back on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestReplay, TestReplayLeavesNewEventsAlone, TestReplayOfWhatCannotBePublished)
}
