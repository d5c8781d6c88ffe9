package serve

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
)

// Limits of the response to a fetch.
const (
	maxAnswer = 8 << 20 // bytes of records, regardless of the client's request
	maxPart   = 1 << 20 // of one partition; a single record may be larger
	// forms is how many times the records of a response are in memory at most: see share.
	forms = 3
	// maxHeld is how long a response with too few records waits for more. It holds its share of the
	// memory meanwhile.
	maxHeld = time.Second
	// A response with more partitions takes a share of the memory although it has no records.
	manyParts = 1000
)

// readCommitted is the isolation level of a fetch that hides aborted transactions. The log has none.
const readCommitted = 1

// fetch is a fetch under way.
type fetch struct {
	conn        *conn
	req         *kmsg.FetchRequest
	session     *session
	incremental bool
	parts       []reading
	limit       int // bytes of records
	used        int
	release     func() // gives the memory back; nil: none is taken
	failed      bool   // a partition has an error, which the client learns at once
	crowded     bool   // records wait that have no room in this response
}

// reading is a partition of a fetch under way.
type reading struct {
	*fetched
	kafka.Partition
	code       int16
	start, end int64 // of the log
	next       int64 // offset after the last one read
	batches    []byte
}

// fetchRecords answers a fetch. It waits until there are as many bytes as the client wants, a partition has an
// error, or the time is over. The response has about size bytes. release must be called when it is sent.
func (c *conn) fetchRecords(ctx context.Context, req *kmsg.FetchRequest) (res *kmsg.FetchResponse, size int,
	release func(), err error) {
	res = kmsg.NewPtrFetchResponse()
	s, incremental, code := c.sessionOf(req)
	if code != 0 {
		res.ErrorCode = code
		return res, 0, func() {}, nil
	}
	f := &fetch{conn: c, req: req, session: s, incremental: incremental}
	release = func() {
		if f.release != nil {
			f.release()
		}
	}
	err = f.run(ctx)
	if err == nil && len(f.parts) > manyParts {
		err = f.take(ctx)
	}
	if err != nil {
		release()
		return nil, 0, nil, err
	}
	f.respond(res)
	for i := range res.Topics { // 64 bytes of fields around the records of a partition, and the name of the topic
		size += 64*len(res.Topics[i].Partitions) + 300
	}
	return res, size + f.used, release, nil
}

// run reads, and waits for more.
func (f *fetch) run(ctx context.Context) error {
	end := time.Now().Add(time.Duration(f.req.MaxWaitMillis) * time.Millisecond)
	f.begin()
	for {
		if err := f.pass(ctx); err != nil {
			return err
		}
		patience := time.Until(end)
		if f.release != nil {
			patience = min(patience, maxHeld)
			end = time.Now().Add(patience)
		}
		if f.enough() || patience <= 0 {
			return nil
		}
		waiting, stop := f.conn.patience(ctx, patience)
		err := f.conn.server.Log.Wait(waiting, f.positions())
		stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return nil //nolint:nilerr // the time is over, or requests behind this one wait: the client asks again
		}
	}
}

// begin finds the partitions.
func (f *fetch) begin() {
	topics := f.conn.server.catalog.now()
	follower := f.req.ReplicaID >= 0 || (f.req.Version >= 15 && f.req.ReplicaState.ID >= 0)
	f.parts = make([]reading, len(f.session.parts))
	for i, p := range f.session.parts {
		r := &f.parts[i]
		r.fetched, r.next = p, p.offset
		name := p.topic
		if f.session.byID {
			t := topics.ids[p.id]
			if t == nil {
				r.code = kerr.UnknownTopicID.Code
				continue
			}
			name = t.Name
		}
		if r.Partition, r.code = topics.partition(name, p.part); r.code == 0 {
			r.code = checkEpoch(p.epoch)
		}
		if follower {
			r.code = kerr.TopicAuthorizationFailed.Code
		}
	}
}

// pass reads what there is of each partition, as far as there is room.
func (f *fetch) pass(ctx context.Context) error {
	for i := range f.parts {
		r := &f.parts[i]
		if r.code == 0 {
			if err := f.read(ctx, r); err != nil {
				return err
			}
		}
		f.failed = f.failed || r.code != 0
	}
	return nil
}

// read reads from one partition. It returns an error only if the connection ends.
func (f *fetch) read(ctx context.Context, r *reading) error {
	var err error
	log := f.conn.server.Log
	if r.start, r.end, err = log.Bounds(ctx, r.Partition); err != nil {
		return r.fail(ctx, err)
	}
	if r.next < r.start || r.next > r.end {
		r.trimmed()
		return nil
	}
	if r.next == r.end {
		return nil
	}
	if f.release == nil {
		if err := f.take(ctx); err != nil {
			return err
		}
	}
	room := min(min(int(r.maxBytes), maxPart)-len(r.batches), f.limit-f.used)
	if room <= 0 && f.used > 0 {
		f.crowded = true
		return nil
	}
	records, err := log.Read(ctx, r.Partition, r.next, max(room, 1))
	if err != nil {
		return r.fail(ctx, err)
	}
	// A gap at this place may be one of the log, or one that was trimmed since Bounds: then a reader
	// must learn that it has missed records.
	if len(records) == 0 || records[0].Offset > r.next {
		start, _, err := log.Bounds(ctx, r.Partition)
		if err != nil {
			return r.fail(ctx, err)
		}
		if start > r.next {
			r.start = start
			r.trimmed()
			return nil
		}
	}
	f.add(r, records, room)
	return nil
}

// add adds the records that have room to the response: at least one if it is the first.
func (f *fetch) add(r *reading, records []*kgo.Record, room int) {
	before := len(r.batches)
	n, size := fitting(records, room)
	switch {
	case len(records) == 0: // the end of the log is a gap
		r.batches = appendGap(r.batches, r.end)
		r.next = r.end
	case n == 0 && f.used > 0:
		f.crowded = true
	default:
		records = records[:max(n, 1)]
		r.batches = appendBatches(slices.Grow(r.batches, size), records)
		r.next = records[len(records)-1].Offset + 1
		r.end = max(r.end, r.next)
	}
	f.used += len(r.batches) - before
}

// fitting counts the records that fit into a batch of room bytes, and says how many bytes they take at most.
func fitting(records []*kgo.Record, room int) (n, size int) {
	size = batchHeader
	for i, r := range records {
		// Numbers take 5 bytes at most, except the time; a length before each key, value and header.
		next := size + 30 + len(r.Key) + len(r.Value)
		for _, h := range r.Headers {
			next += 10 + len(h.Key) + len(h.Value)
		}
		if next > room && i > 0 {
			return i, size
		}
		size = next
		if next > room {
			return 0, size // of the first one, which may be sent all the same
		}
	}
	return len(records), size
}

// fail notes an error of the log, after which the client tries again.
func (r *reading) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(r.batches) == 0 {
		r.code = storageError(err)
	}
	return nil
}

// trimmed notes that the log does not have the next record. If there are records before it, the client reads
// these first.
func (r *reading) trimmed() {
	if len(r.batches) == 0 {
		r.code = kerr.OffsetOutOfRange.Code
	}
}

// take takes memory for records.
func (f *fetch) take(ctx context.Context) error {
	if f.release != nil {
		return nil
	}
	want := int(min(f.req.MaxBytes, maxAnswer))
	extra, release, err := f.conn.server.memory.take(ctx, int64(max(want-maxPart, 0)*forms))
	if err != nil {
		return err
	}
	f.release, f.limit = release, min(want, maxPart+int(extra)/forms)
	return nil
}

// enough says whether the response is ready before its time is over.
func (f *fetch) enough() bool {
	return f.failed || f.crowded || len(f.parts) == 0 || f.used >= int(min(f.req.MinBytes, maxAnswer))
}

// positions are the ends that were seen.
func (f *fetch) positions() []kafka.Position {
	list := make([]kafka.Position, 0, len(f.parts))
	for i := range f.parts {
		list = append(list, kafka.Position{Partition: f.parts[i].Partition, Offset: f.parts[i].end})
	}
	return list
}

// respond fills in the response.
func (f *fetch) respond(res *kmsg.FetchResponse) {
	res.SessionID = f.session.id
	served := map[*fetched]bool{}
	for i := range f.parts {
		r := &f.parts[i]
		if len(r.batches) > 0 {
			served[r.fetched] = true
		}
		if !r.news() && f.incremental {
			continue
		}
		r.sentStart, r.sentEnd = r.start, r.end
		if r.code != 0 {
			r.sentStart, r.sentEnd = -1, -1
		}
		last := len(res.Topics) - 1
		if last < 0 || res.Topics[last].Topic != r.topic || res.Topics[last].TopicID != r.id {
			t := kmsg.NewFetchResponseTopic()
			t.Topic, t.TopicID = r.topic, r.id
			res.Topics = append(res.Topics, t)
			last++
		}
		res.Topics[last].Partitions = append(res.Topics[last].Partitions, r.response(f.req.IsolationLevel))
	}
	f.session.rotate(served)
}

// news says whether the client does not know yet what the response says of the partition.
func (r *reading) news() bool {
	return r.code != 0 || len(r.batches) > 0 || r.sentStart != r.start || r.sentEnd != r.end
}

func (r *reading) response(isolation int8) kmsg.FetchResponseTopicPartition {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.ErrorCode = r.part, r.code
	p.HighWatermark, p.LastStableOffset, p.LogStartOffset = r.end, r.end, r.start
	p.RecordBatches = []byte{} // not null: a client may not know it
	if r.code != 0 {
		p.HighWatermark, p.LastStableOffset, p.LogStartOffset = -1, -1, -1
	}
	if len(r.batches) > 0 {
		p.RecordBatches = r.batches
	}
	if isolation == readCommitted {
		p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
	}
	return p
}
