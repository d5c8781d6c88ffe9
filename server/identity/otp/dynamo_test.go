package otp_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Codes are the same on DynamoDB.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t, TestSec_S_09_Replay, TestSec_S_09_SixthAttempt, TestSec_S_09_Expiry,
		TestSec_S_09_NewCodeVoidsTheLast, TestSec_S_09_ParallelVerify, TestSec_S_09_GuessesOfADay, TestSec_S_10_CodesOfADay,
		TestSec_S_10_ParallelRequests, TestSec_S_09_SlowCaller, TestPlanOfACode, TestSec_S_09_StrangersVoidNoCode,
		TestSec_S_10_StrangersLockNobodyOut)
}
