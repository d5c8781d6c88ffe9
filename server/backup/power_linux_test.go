package backup_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/faultydisk"
)

// A backup that was made, and one that was restored, outlive a power loss, also in directories
// that had to be made for them.
func TestOutlivesAPowerLoss(t *testing.T) {
	dir := t.TempDir()
	d, err := faultydisk.Mount(dir, 256<<20)
	if errors.Is(err, faultydisk.ErrUnusable) {
		t.Skip("not run: ", err)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, d.Close()) })
	from, want := t.TempDir(), filled()
	put(t, from, want)
	rng := rand.New(rand.NewPCG(1, 1))
	for i, to := range []string{"a/backups", "b/one.tar.zst"} {
		for round, part := range []*rand.Rand{nil, rng, rng} {
			in := filepath.Join(dir, fmt.Sprint(i, "-", round))
			r := testkit.Value(write(t, from, filepath.Join(in, to), 10*i+round, 0))(t)
			testkit.Must(t, d.PowerLoss(part))
			testkit.Must(t, backup.Verify(t.Context(), r.Path, nil))
			data := filepath.Join(in, "restored", "data")
			testkit.Must(t, backup.Restore(t.Context(), r.Path, data, nil, func(string) error { return nil }))
			testkit.Must(t, d.PowerLoss(part))
			testkit.Must(t, backup.CheckUnfinished(data))
			if got := files(t, data); !maps.Equal(got, want) {
				t.Errorf("%s: restored %d files of %d", r.Path, len(got), len(want))
			}
		}
	}
}
