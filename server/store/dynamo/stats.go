package dynamo

import (
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// Stats are counters since the engine was opened.
type Stats struct {
	wire.Stats
	Plans  int64 // committed
	Failed int64 // plans with failed conditions

	// The cost of the answered requests as reported by DynamoDB, in its units. Transactions
	// that it cancelled cost too, which it does not say.
	ReadUnits, WriteUnits float64
}

type counters struct {
	plans, failed           atomic.Int64
	readHalves, writeHalves atomic.Int64 // half units: an eventual read costs one
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	c := &s.counters
	return Stats{
		Stats: s.wire.Stats(), Plans: c.plans.Load(), Failed: c.failed.Load(),
		ReadUnits: float64(c.readHalves.Load()) / 2, WriteUnits: float64(c.writeHalves.Load()) / 2,
	}
}

func (c *counters) reads(list ...types.ConsumedCapacity)  { c.readHalves.Add(halves(list)) }
func (c *counters) writes(list ...types.ConsumedCapacity) { c.writeHalves.Add(halves(list)) }

func (c *counters) read(one *types.ConsumedCapacity) {
	if one != nil {
		c.reads(*one)
	}
}

func (c *counters) write(one *types.ConsumedCapacity) {
	if one != nil {
		c.writes(*one)
	}
}

func halves(list []types.ConsumedCapacity) (n int64) {
	for _, c := range list {
		if c.CapacityUnits != nil {
			n += int64(*c.CapacityUnits*2 + 0.5)
		}
	}
	return n
}
