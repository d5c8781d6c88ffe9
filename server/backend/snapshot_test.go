package backend_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// A snapshot is of one moment, however long it takes: each event is in the log or in the outbox, and what the
// log refers to is in the store.
func TestSnapshotIsOneMoment(t *testing.T) {
	t.Parallel()
	n := start(t, t.TempDir())
	ids := n.fill()
	stop := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() { // the store goes on
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_, err := n.chats.Send(t.Context(), chat.Send{Caller: "alice", ChatID: ids[i%len(ids)], Content: "x"})
			if err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond) // a thousand messages a second: all that were sent are published and read below
		}
	})
	working.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			n.now = n.now.Add(3 * time.Second)
			if err := n.relay.Cycle(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	to := t.TempDir()
	for round := range 3 {
		dir, release, err := n.eng.Snapshot(t.Context())
		n.must(err)
		if round == 0 { // a second one waits for the first for seconds
			if _, _, err := n.eng.Snapshot(t.Context()); !errors.Is(err, backup.ErrRunning) {
				t.Errorf("a second snapshot: %v", err)
			}
		}
		_, err = backup.Write(t.Context(), backup.Options{From: dir, Of: testkit.Value(backup.ReadList(dir))(t), To: to})
		n.must(err)
		release()
	}
	close(stop)
	working.Wait()
	before := n.eng.Generation
	n.must(n.eng.Close())
	for _, path := range testkit.Value(backup.All(to))(t) {
		dir := filepath.Join(t.TempDir(), "data")
		n.must(backup.Restore(t.Context(), path, dir, nil, func(dir string) error {
			return backend.PrepareRestored(config(dir), dir)
		}))
		restored := start(t, dir)
		restored.publish()
		if events, records := len(restored.events()), restored.inLog(); events < 60 || records < events {
			t.Errorf("%d events, %d records", events, records)
		}
		if restored.eng.Generation == before {
			t.Error("the restored store has the generation of the one that went on")
		}
		n.must(restored.eng.Close())
	}
}
