package pipeline

import (
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/projection"
)

// The projector's group reads what its projections follow, and nothing else: what it does not
// read is trimmed without it, and what it reads in vain holds up the trimming.
func TestProjectionsFollowTheTableOfTopics(t *testing.T) {
	var follow []string
	for _, d := range definitions() {
		follow = append(follow, d.Topics...)
	}
	slices.Sort(follow)
	read := slices.Sorted(slices.Values(kafka.ReadBy(projection.Group)))
	if follow = slices.Compact(follow); !slices.Equal(follow, read) {
		t.Errorf("projections follow %v, their group reads %v", follow, read)
	}
}
