package dynamo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// No process uses tables that are being moved, also one that runs already; when the move has ended, their
// history follows on that of the store that they came from.
func TestMoving(t *testing.T) {
	s := dynamotest.Fresh(t)
	unmarkAtEnd(t, s)
	o := s.Options()
	before := s.Generation()
	source := []store.Ancestor{{Generation: "source", Last: 7}, {Generation: "gone", Last: -1}}
	for _, key := range []store.Key{table.ImportKey(), table.ExportKey()} {
		testkit.Must(t, s.CheckFormat(t.Context(), store.Strong))
		row := table.Import{Export: "e"}.Item()
		testkit.Must(t, s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: row}}))
		err := s.CheckFormat(t.Context(), store.Strong)
		if !errors.Is(err, dynamo.ErrMoving) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := dynamo.Open(t.Context(), o); !errors.Is(err, dynamo.ErrMoving) {
			t.Errorf("%s: %v", key, err)
		}
		o.Moving = true
		m := testkit.Value(dynamo.Open(t.Context(), o))(t)
		testkit.Must(t, m.Follow(t.Context(), source))
		testkit.Must(t, m.Close())
		o.Moving = false
	}
	now := testkit.Value(dynamo.Open(t.Context(), o))(t)
	defer now.Close()
	h := now.History()
	if h.Generation() == before || h.Generation() != now.Generation() || !h.Holds("source", 7) || h.Holds("source", 8) ||
		h.Holds("gone", 0) || h.Holds(before, 0) || !h.Holds(now.Generation(), 1) {
		t.Errorf("the history of %s", h.Generation())
	}
	if l := now.Lineage(); len(l) != 3 || l[0].Generation != now.Generation() || l[1] != source[0] {
		t.Errorf("%v", l)
	}
}
