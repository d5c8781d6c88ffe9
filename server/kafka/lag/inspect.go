// Package lag reads what is on Kafka without joining a group: what a topic holds, the
// records of a part of it, the lag of a group.
//
// It owns reading for operators; consuming, and everything that changes something, is
// package kafka's. Concurrency: all functions may be called by anybody; each call has
// connections of its own.
package lag

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

const (
	maxPoll       = 500
	fetchMaxBytes = 8 << 20
	metadataAge   = 250 * time.Millisecond
)

// open makes a client; Close must be called.
func open(addr string, options []kafka.Option, more ...kgo.Opt) (*kgo.Client, error) {
	all := append(slices.Clone(options), kgo.SeedBrokers(strings.Split(addr, ",")...), kgo.ClientID("parley-inspect"),
		kgo.DisableClientMetrics(), kgo.MetadataMinAge(metadataAge))
	c, err := kgo.NewClient(append(all, more...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}
