package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/workers/pipeline"
)

// The deployment's step registers and verifies the schemas of migrated topics too, and verify
// changes nothing.
func TestSchemasOfMigratedTopics(t *testing.T) {
	ctx, st := t.Context(), storetest.NewMemory(time.Now)
	if _, err := registry.New(st).RegisterOwn(ctx, pipeline.Messages()...); err != nil {
		t.Fatal(err)
	}
	if _, err := versions.Save(ctx, st, versions.State{Topics: map[string][]versions.Version{"messages.persisted": {
		{Number: 1, Partitions: 64, Status: versions.Past}, {Number: 2, Partitions: 256, Status: versions.Current},
	}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := resolve(ctx, st, false)
		var missing *registry.MissingError
		if !errors.As(err, &missing) || !strings.HasPrefix(missing.Subject, "messages.persisted.v2-") {
			t.Fatalf("verify: %v", err)
		}
	}
	for _, register := range []bool{true, false} {
		if _, err := resolve(ctx, st, register); err != nil {
			t.Errorf("register is %v: %v", register, err)
		}
	}
}
