package view_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// What a user may see is the same on DynamoDB.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t,
		TestChanges, TestChangesReset, TestChangesConverge, TestMessagePages, TestMessageFields, TestIncompletePlans,
		TestMembers,
		TestMemberIDsVersionIsOlder, TestRowsOfHub, TestNothingAfterTheOwnRemoval, TestBackBetweenTwoReads, TestSinceJoined,
		TestOverview, TestMute, TestStrangerAndUnknownChatAreAlike, TestListChatsOrder, TestPagesOfStillChats,
		TestPagesWhileChatsMove, TestPagesWithClockBehind, TestSync, TestSyncTokenIsOlderThanTheReads,
		TestSyncRemovedMeanwhile,
		TestListChatsFilters, TestStateHasRoleAndRevision, TestRowsOfEarlierReleases, TestSyncListsChangesOfTheOwnRow,
		TestReadsOfAList,
		TestSyncPagesOfLeftChats, TestChangesOfAMemberWhoCameBack)
}

// So it is while a third of all requests is refused, lost or loses its answer.
func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 14, TestChangesConverge, TestMessagePages, TestSync, TestPagesWhileChatsMove,
		TestMemberIDsVersionIsOlder)
}
