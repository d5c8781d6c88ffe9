package commitlog

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// An inspection finds a batch that counts other bytes before it than there are: trims would go by
// them. Behind one that cannot be read, the count is taken over.
func TestInspectCountsBytes(t *testing.T) {
	engine := records.Of(embeddedtest.NewDisk(nil).Open(t, nil))
	log := NewLocal(engine, nil)
	topic := testkit.Value(log.CreateEventTopic(t.Context(), EventTopic{Name: "events", Partitions: 1}))(t)
	id := Partition{Topic: topic.Number}
	before := int64(700) // those before it were trimmed
	for n, wrong := range []int64{0, 0, 5, 0, 0} {
		a := &Append{Partition: id, Records: []record.Record{{Value: []byte("value")}}}
		d, err := newDraft(a, 1)
		testkit.Must(t, err)
		d.assignPosition(int64(n), before+wrong, Producer{})
		before += wrong + storedSize(d.value)
		if n == 3 {
			d.value[len(d.value)-1] ^= 1
		}
		wait := testkit.Value(engine.Commit(t.Context(), []store.Record{{Key: batchKey(id, int64(n)), Value: d.value}}))(t)
		testkit.Must(t, wait())
	}
	var found []string
	_, err := Inspect(t.Context(), engine, func() {}, func(_ Partition, where, what string) error {
		found = append(found, where+": "+what)
		return nil
	})
	testkit.Must(t, err)
	if len(found) != 2 || !strings.Contains(found[0], "position 2: ") || !strings.Contains(found[0], "bytes before it") ||
		!strings.Contains(found[1], "checksum") {
		t.Errorf("%q", found)
	}
}
