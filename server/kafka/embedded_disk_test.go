package kafka

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
)

// What a full disk makes the broker refuse is explained with the directory, and stays what it
// is for callers that ask which partitions refused it. Other errors are passed on.
func TestExplain(t *testing.T) {
	dir := t.TempDir()
	b := &Broker{cfg: BrokerConfig{Dir: dir}}
	b.disk.b = b
	refused := &PartitionError{Partitions: []Partition{{Topic: "t", ID: 3}}, Err: kerr.UnknownServerError, All: true}
	b.disk.Logf(kfake.LogLevelWarn, "persist batch t-3: %v", &os.PathError{Op: "write", Path: "x", Err: syscall.EIO})
	b.disk.Logf(kfake.LogLevelInfo, "persist batch t-3: %v", syscall.ENOSPC)
	b.disk.Logf(kfake.LogLevelWarn, "client: %v", syscall.ENOSPC)
	if got := b.Explain(refused); !errors.Is(got, refused) || errors.Is(got, ErrNoSpace) {
		t.Errorf("%v", got)
	}
	b.disk.Logf(kfake.LogLevelWarn, "persist batch t-3: %v", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	got := b.Explain(refused)
	var partial *PartitionError
	if !errors.Is(got, ErrNoSpace) || !errors.Is(got, kerr.UnknownServerError) || !errors.As(got, &partial) ||
		!partial.All || len(partial.Partitions) != 1 || !strings.Contains(got.Error(), dir) ||
		strings.Contains(refused.Error(), "space") {
		t.Errorf("%v", got)
	}
	if got := b.Explain(fmt.Errorf("commit: %w", kerr.UnknownServerError)); !errors.Is(got, ErrNoSpace) {
		t.Errorf("%v", got)
	}
	if got := b.Explain(nil); got != nil {
		t.Errorf("%v", got)
	}
	if got := (&diskLog{b: &Broker{cfg: BrokerConfig{Dir: "log"}}}).dir(); !filepath.IsAbs(got) {
		t.Errorf("%s is not absolute", got)
	}
}
