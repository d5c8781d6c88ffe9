package serve

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
)

// Times with a meaning of their own in ListOffsets.
const (
	latest          = -1
	earliest        = -2
	greatestTime    = -3 // of the records, not of the log's end
	earliestLocal   = -4 // without tiered storage, all records are local
	latestTiered    = -5 // and none is tiered
	earliestPending = -6 // or to be uploaded
)

// since is the first version of ListOffsets that has a time, or 0.
func since(t int64) int16 {
	switch t {
	case greatestTime:
		return 7
	case earliestLocal:
		return 8
	case latestTiered:
		return 9
	case earliestPending:
		return 11
	default:
		return 0
	}
}

// listOffsets finds offsets by time.
func (c *conn) listOffsets(ctx context.Context, h header, req *kmsg.ListOffsetsRequest) (kmsg.Response, error) {
	topics := c.server.catalog.now()
	res := kmsg.NewPtrListOffsetsResponse()
	twice := map[kafka.Partition]int{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			twice[kafka.Partition{Topic: t.Topic, ID: p.Partition}]++
		}
	}
	for _, t := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition = p.Partition
			rp.Offset, rp.Timestamp, rp.LeaderEpoch = -1, -1, -1
			part, code := topics.partition(t.Topic, p.Partition)
			switch {
			case twice[kafka.Partition{Topic: t.Topic, ID: p.Partition}] > 1:
				rp.ErrorCode = kerr.InvalidRequest.Code
			case code != 0:
				rp.ErrorCode = code
			case checkEpoch(p.CurrentLeaderEpoch) != 0:
				rp.ErrorCode = checkEpoch(p.CurrentLeaderEpoch)
			case p.Timestamp < earliestPending || h.version < since(p.Timestamp):
				rp.ErrorCode = kerr.UnsupportedVersion.Code
			default:
				c.server.offset(ctx, part, p.Timestamp, &rp)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, ctx.Err()
}

// offset fills in the answer for one partition.
func (s *Server) offset(ctx context.Context, p kafka.Partition, t int64, rp *kmsg.ListOffsetsResponseTopicPartition) {
	var err error
	var at time.Time
	offset := int64(-1)
	switch t {
	case latest:
		_, offset, err = s.Log.Bounds(ctx, p)
	case earliest, earliestLocal:
		offset, _, err = s.Log.Bounds(ctx, p)
	case greatestTime:
		offset, at, err = s.Log.Newest(ctx, p)
	case latestTiered, earliestPending:
	default:
		offset, at, err = s.Log.OffsetAt(ctx, p, time.UnixMilli(t))
	}
	if rp.ErrorCode = storageError(err); err != nil || offset < 0 {
		return
	}
	rp.Offset, rp.LeaderEpoch = offset, epoch
	if t >= 0 || t == greatestTime {
		rp.Timestamp = at.UnixMilli()
	}
}

// epochEnds says where leader epochs end. There is one epoch, which ends with the log, and no record of it was
// ever taken back.
func (c *conn) epochEnds(ctx context.Context, _ header, req *kmsg.OffsetForLeaderEpochRequest) (kmsg.Response, error) {
	topics := c.server.catalog.now()
	res := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.Partition, rp.LeaderEpoch, rp.EndOffset = p.Partition, -1, -1
			part, code := topics.partition(t.Topic, p.Partition)
			if code == 0 {
				code = checkEpoch(p.CurrentLeaderEpoch)
			}
			if code == 0 && p.LeaderEpoch == epoch {
				_, end, err := c.server.Log.Bounds(ctx, part)
				if code = storageError(err); code == 0 {
					rp.LeaderEpoch, rp.EndOffset = epoch, end
				}
			}
			rp.ErrorCode = code
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, ctx.Err()
}
