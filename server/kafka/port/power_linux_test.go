package port_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/faultydisk"
	"github.com/parley-chat/parley/server/kafka/port"
)

// The readers' password outlives a power loss, whenever the address is written again.
func TestPasswordOutlivesAPowerLoss(t *testing.T) {
	dir := t.TempDir()
	d, err := faultydisk.Mount(dir, 16<<20)
	if errors.Is(err, faultydisk.ErrUnusable) {
		t.Skip("not run: ", err)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, d.Close()) })
	c := port.Credentials{Address: "127.0.0.1:9092", Password: password}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, part := range []*rand.Rand{nil, rng, rng, rng, rng} {
		testkit.Must(t, c.Save(dir))
		testkit.Must(t, d.PowerLoss(part))
		testkit.Equal(t, "password", testkit.Value(port.Password(dir))(t), password)
	}
}
