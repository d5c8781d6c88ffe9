package projection_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/workers/projection"
)

// before makes a store that calls f once, before it first runs a plan with a write of a name.
func before(st store.Store, name string, f func()) store.Store {
	done := false
	return faulty.New(st, faulty.Options{Policy: faulty.On(func(c faulty.Call) faulty.Fault {
		if !done && c.Writes[0].Name == name {
			done = true
			return faulty.Fault{Delay: 1} // Sleep is called without the wrapper's lock
		}
		return faulty.Fault{}
	}, faulty.Transact), Sleep: func(_ context.Context, d time.Duration) error {
		if d > 0 {
			f()
		}
		return nil
	}})
}

// A process that was slow between reading and writing changes nothing that another has
// folded meanwhile.
func TestSlowProcess(t *testing.T) {
	f := newFixture(t, 1)
	testkit.Must(t, f.set(f.store, nil).Prepare(t.Context()))
	testkit.Must(t, f.set(f.store, nil).RebuildOnce(t.Context()))
	record := []*kafka.Record{{Topic: kafka.MessagesPersisted, Key: []byte(f.ids[0])}}
	f.send(f.ids[0], "alice", 1)
	slow := before(f.store, "position", func() {
		f.send(f.ids[0], "bob", 2)
		handle(t, f.set(f.store, nil), [][]*kafka.Record{record})
	})
	s := f.set(slow, nil)
	handle(t, s, [][]*kafka.Record{record, record})
	f.check()
	testkit.Equal(t, "plans that came too late", s.Stats("chat_activity").Conflicts, int64(1))
}

// A process that has not heard of a rebuild handles a record just before the next build
// becomes the live one: the record is in it.
func TestRecordJustBeforeTheSwitch(t *testing.T) {
	f := newFixture(t, 2)
	f.talk(20)
	s := f.set(f.store, nil)
	testkit.Must(t, s.Prepare(t.Context()))
	testkit.Must(t, s.RebuildOnce(t.Context()))
	handle(t, s, f.batches(5))
	f.do(projection.Start)
	switching := before(f.store, "projection", func() {
		f.send(f.ids[0], "carol", 1)
		handle(t, s, [][]*kafka.Record{{{Topic: kafka.MessagesPersisted, Key: []byte(f.ids[0])}}})
	})
	testkit.Must(t, f.set(switching, nil).RebuildOnce(t.Context()))
	testkit.Equal(t, "the live build", f.status().Builds.Live, int64(2))
	f.check()
}
