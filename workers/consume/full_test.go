package consume

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	faults "github.com/parley-chat/parley/server/store/faulty"
)

// While the storage is full a group still takes partitions over and reads them, a record that
// fails included: what it has not read cannot be trimmed.
func TestFullStorage(t *testing.T) {
	both(t, each, func(t *testing.T, r *fixture) {
		full := faults.New(r.store, faults.Options{Policy: faults.Full})
		r.publish("a ok 1", "b unknown 2", "c ok 3")
		r.until(r.engine(func(c *Config) { c.Store = full }), "all is handled", func() bool {
			_, dead := r.dead["b unknown 2"]
			return dead && r.calls["a ok 1"] > 0 && r.calls["c ok 3"] > 0
		})
		testkit.Equal(t, "dead letters", len(r.dead), 1)
	})
}
