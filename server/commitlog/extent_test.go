package commitlog_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// stored is a batch as the engine has it.
type stored struct{ end, bytes int64 }

// storedIn lists the batches of a partition from the bytes of the engine.
func storedIn(t *testing.T, r store.Records, id commitlog.Partition) (list []stored) {
	t.Helper()
	key := binary.BigEndian.AppendUint64(nil, id.Topic)
	key = append(binary.BigEndian.AppendUint16(key, uint16(id.Number)), 1)
	err := r.Seek(t.Context(), key, append(key[:len(key)-1:len(key)-1], 2), false,
		func(key []byte, value func() ([]byte, error)) bool {
			v := testkit.Value(value())(t)
			list = append(list, stored{int64(binary.BigEndian.Uint64(key[len(key)-8:])) + 1, int64(len(key) + len(v))})
			return true
		})
	testkit.Must(t, err)
	return list
}

// The bytes of a partition, and the position at which they come to a number, are those of the
// batches that the engine has, after appends, trims, a trim of everything, and restarts.
func TestBytesOfPartitions(t *testing.T) {
	disk := embeddedtest.NewDisk(nil)
	s := disk.Open(t, nil)
	engine := records.Of(s)
	log := commitlog.NewLocal(engine, time.Now)
	topic := eventTopic(t, log, "events", 2).Number
	rng := rand.New(rand.NewPCG(4, 5))
	at := commitlog.Partition{Topic: topic, Number: 1}
	for step := range 300 {
		a := commitlog.Append{Partition: at, Records: recordsOf(step, 1+rng.IntN(9)), Gap: int64(rng.IntN(3))}
		if step%3 == 0 {
			a.Records, a.References = nil, referencesOf(step, 1+rng.IntN(9))
		}
		again := commitlog.Append{Partition: at, Records: recordsOf(step, 1)}
		testkit.Value(log.Append(t.Context(), []commitlog.Append{a, again}))(t)
		start, end, err := log.Bounds(t.Context(), at)
		testkit.Must(t, err)
		switch {
		case step%60 == 59:
			testkit.Value(log.Trim(t.Context(), at, end))(t)
		case step%20 == 19:
			testkit.Value(log.Trim(t.Context(), at, start+rng.Int64N(end-start)))(t)
		}
		if step%25 == 24 {
			testkit.Must(t, s.Close())
			s = disk.Open(t, nil)
			engine = records.Of(s)
			log = commitlog.NewLocal(engine, time.Now)
		}
		list := storedIn(t, engine, at)
		var all int64
		for _, b := range list {
			all += b.bytes
		}
		testkit.Equal(t, "bytes", testkit.Value(log.Bytes(t.Context(), at))(t), all)
		first, ok, err := log.ExtentFrom(t.Context(), at, 0)
		testkit.Must(t, err)
		testkit.Equal(t, "the partition has batches", ok, len(list) > 0)
		if !ok {
			continue
		}
		i := rng.IntN(len(list))
		var before int64
		for _, b := range list[:i] {
			before += b.bytes
		}
		for want, bytes := range map[int64]int64{list[i].end: before + 1 + rng.Int64N(list[i].bytes), end: all + 1} {
			got := testkit.Value(log.PositionOf(t.Context(), at, first.Before+bytes))(t)
			testkit.Equal(t, "position", got, want)
		}
		e, _, err := log.ExtentFrom(t.Context(), at, list[i].end-1)
		testkit.Must(t, err)
		testkit.Equal(t, "extent", commitlog.Extent{Base: e.Base, Time: e.Time, End: list[i].end, Bytes: list[i].bytes,
			Before: first.Before + before}, e)
	}
}
