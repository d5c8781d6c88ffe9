package eventquery_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// The event store is read on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestVersionsHaveNoGap, TestListByStatus, TestFoldOfWhatIsNotWhole, TestVersionAtWithAWrongClock)
}
