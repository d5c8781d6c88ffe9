package storage_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// An installation has one id, which no other has.
func TestInstallation(t *testing.T) {
	ids := map[string]bool{}
	for range 2 {
		s := embeddedtest.NewDisk(nil).Open(t, time.Now)
		id, err := storage.Installation(t.Context(), s)
		testkit.Must(t, err)
		again, err := storage.Installation(t.Context(), s)
		testkit.Must(t, err)
		if id == "" || id != again || ids[id] {
			t.Errorf("the id is %q, then %q", id, again)
		}
		ids[id] = true
	}
}
