package session_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Sessions are the same on DynamoDB.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestSec_S_11_Rotation, TestSec_S_11_DumpHasNoToken, TestSec_S_12_Grace, TestSec_S_12_Theft,
		TestSec_S_12_ParallelRefreshes, TestSec_S_13_IdleAndAbsolute, TestSec_S_13_ListAndEnd, TestSessionsAreBounded,
		TestSuspendedUsers, TestRevokerFails, TestLostAnswers, TestOpeningsAreBounded, TestExpiredAccessIsNotRevoked,
		TestSlowCallerPutsNothingBack)
}
