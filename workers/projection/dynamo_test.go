package projection_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Projections are kept and made again on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestEachEventCountsOnce,
		TestVersions, TestEventThatCannotBeRead, TestSlowProcess, TestRecordJustBeforeTheSwitch)
}
