package registry

import (
	"testing"

	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// The registry keeps its schemas on DynamoDB as on any engine, also while requests
// fail and lose their answers.
func TestOnDynamoDB(t *testing.T) {
	dynamotest.Rerun(t,
		TestOwnSchemasAreReadable, TestOldRows, TestRacingVersionsAreCompared, TestAmbiguousWrites, TestLimits,
		TestRecordsOfOtherVersions,
		TestIdsAreStableAndDistinct, TestSerde, TestTransitiveLevels, TestReferenceBesideDeletion, TestImportedIds, TestKept,
		TestKeptBesideDeletion, TestFollows)
}

func TestOnDynamoDBUnderFaults(t *testing.T) {
	dynamotest.RerunUnderFaults(t, 6, TestRacingVersionsAreCompared, TestIdsAreStableAndDistinct,
		TestRecordsOfOtherVersions)
}
