package consume

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Attempts are counted on DynamoDB as on any engine.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestOutcomes, TestRestartGoesOn, TestDeadLetterBeforeCommit, TestBlameIsForTheLonely, TestPoison)
}
