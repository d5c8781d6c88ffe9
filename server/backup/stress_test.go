package backup_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		from := t.TempDir()
		put(t, from, map[string]string{"FORMAT": "parley 2 2\n"})
		return lifecycle.Service{Name: "backups", Run: newScheduled(t, from, t.TempDir()).Run}
	})
}
