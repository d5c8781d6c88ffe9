package slot

import (
	"fmt"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/event"
)

func TestSlotsCoverEachShardOnce(t *testing.T) {
	for n := 1; n <= event.Shards; n++ {
		var all []int
		for i := range n {
			s := Numbered(i, n)
			all = append(all, s.Shards...)
			if s.TransactionalID != fmt.Sprint("parley-relay-", i) || len(s.Shards) < event.Shards/n ||
				len(s.Shards) > event.Shards/n+1 {
				t.Fatalf("%+v, expected parley-relay-%d with %d or %d shards", s, i, event.Shards/n, event.Shards/n+1)
			}
		}
		slices.Sort(all)
		if len(all) != event.Shards || len(slices.Compact(all)) != event.Shards {
			t.Fatalf("%d slots have the shards %v, expected each of %d once", n, all, event.Shards)
		}
	}
}
