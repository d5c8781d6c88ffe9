package move_test

import (
	"testing"

	"github.com/parley-chat/parley/server/move"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Rows of meta that speak of the event log, or of one installation, are in no export.
func TestMetaRowsThatMove(t *testing.T) {
	for key, want := range map[store.Key]bool{
		table.LogKey(): false, table.LogGivenUpKey(): false, table.TopicsKey(): false, table.ImportKey(): false,
		table.ExportKey(): false, table.ClockKey(): true,
	} {
		if got := move.Moves(key); got != want {
			t.Errorf("%s moves: %v", key, got)
		}
	}
}
