package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Freeze calls f while the broker handles no request: nothing is appended, committed, trimmed
// or synced meanwhile, and f sees the files as a process that is killed leaves them. f must be
// short, as clients wait.
func (b *Broker) Freeze(ctx context.Context, f func() error) error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	// The broker handles one request after the other. A random name identifies this one, which
	// lasts as long as f.
	name := rand.Text()
	var once sync.Once
	err := errors.New("the broker did not handle the request")
	b.cluster.ControlKey(int16(kmsg.ListGroups), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req, ok := r.(*kmsg.ListGroupsRequest)
		if !ok || len(req.StatesFilter) != 1 || req.StatesFilter[0] != name {
			if ctx.Err() != nil {
				b.cluster.DropControl() // Freeze has given up
			}
			return nil, nil, false
		}
		once.Do(func() {
			if err = ctx.Err(); err == nil {
				err = f()
			}
		})
		return req.ResponseKind(), nil, true
	})
	c, failed := kgo.NewClient(append(b.Options(), kgo.SeedBrokers(b.addr), kgo.ClientID("parley-freeze"),
		kgo.DisableClientMetrics())...)
	if failed != nil {
		return fmt.Errorf("kafka client: %w", failed)
	}
	defer c.Close()
	req := kmsg.NewPtrListGroupsRequest()
	req.StatesFilter = []string{name}
	if _, failed := c.SeedBrokers()[0].Request(ctx, req); failed != nil {
		// It may come yet, or be in work.
		once.Do(func() { err = nil })
		return errors.Join(err, fmt.Errorf("freeze the log: %w", failed))
	}
	return err
}
