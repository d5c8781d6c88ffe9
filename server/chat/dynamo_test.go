package chat_test

import (
	"flag"
	"testing"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// The tests of the rules that take whatever engine they are given hold on DynamoDB, too;
// those that compare engines run on it by themselves.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Endpoint(t)
	fewChecks(t)
	dynamotest.Rerun(t,
		TestRowsAndEvents, TestThrottledCreation, TestSendDuringCreation, TestCrashedCreation, TestFaultyStore,
		TestStoreWithoutAnswer,
		TestCommandSequences, TestInactiveChatsDoNotChange, TestHowLongRequestsAreRemembered, TestStrangersCostTheSame,
		TestMeter,
		TestAuthorizationMatrix, TestTornReads, TestLateLeave, TestCancelledCallers, TestLeaderGoesBeforeARetry,
		TestRepetitionsOutliveTheLeader,
		TestPanicDoesNotWedgeTheChat, TestStampsNeverGoBack)
}

// The same on top of requests that are refused, lost or lose their answers, where it is
// faults that matter.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.Endpoint(t)
	fewChecks(t)
	dynamotest.RerunUnderFaults(t, 12, TestFaultyStore, TestCommandSequences, TestCrashedCreation, TestSendDuringCreation,
		TestRepetitionsOutliveTheLeader)
}

// L-160, L-183: two processes with connections of their own, while requests of both are
// throttled, meet other transactions, are lost and lose their answers: there is one order
// of all commands on a chat that explains all answers, every invariant of the rows holds,
// and every commit is reported once, in order.
func TestTwoProcessesOnDynamoDB(t *testing.T) {
	o := dynamotest.Options(t)
	healthy := dynamotest.Open(t, o)
	met := map[dynamotest.Fault]int{}
	for seed := range uint64(6) {
		var ways [2]store.Store
		var faults [2]*dynamotest.Faults
		for i := range ways {
			mine := o
			faults[i] = dynamotest.RandomChaos(2*seed + uint64(i))
			faults[i].Inject(&mine)
			ways[i] = dynamotest.Open(t, mine)
		}
		w, history, start := serialHistory(t, healthy, ways, seed)
		checkSerial(t, serialModel(start), history, seed)
		w.check()
		w.checkCommits(false)
		for _, f := range faults {
			for kind, n := range f.Met() {
				met[kind] += n
			}
		}
	}
	if len(met) < 8 {
		t.Errorf("not all faults were met: %v", met)
	}
}

// fewChecks bounds the rounds of property tests.
func fewChecks(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := checks.Value.Set("4"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := checks.Value.Set(before); err != nil {
			t.Error(err)
		}
	})
}
