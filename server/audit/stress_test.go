package audit

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	log := New(storetest.NewMemory(time.Now), time.Now)
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		r := NewRecorder(log, slog.New(slog.DiscardHandler))
		for range perWindow + 2 {
			testkit.Must(t, r.Record(t.Context(), Event{Action: SignedIn, Outcome: "wrong"}))
		}
		return lifecycle.Service{Name: "events", Run: r.Run}
	})
}
