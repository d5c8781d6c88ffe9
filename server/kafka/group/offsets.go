package group

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// bytes is what an offset is counted with, and what Go needs for it.
func (o offset) bytes(p partitionKey) int { return 160 + len(p.topic) + len(o.metadata) }

func (m *machine) countOffset(g *group, bytes int) {
	g.offsetBytes += bytes
	m.offsetBytes += bytes
}

// commit stores offsets.
func (m *machine) commit(r request, req *kmsg.OffsetCommitRequest) {
	g, code := m.committer(r, req)
	if g != nil {
		defer m.touched(g)
	}
	res := commitResponse(req)
	if code != 0 {
		m.reply(r.token, refuseCommit(res, code))
		return
	}
	var keep []Row
	offsets := map[partitionKey]offset{}
	now, bytes := m.stamp(), 0
	for i, t := range req.Topics {
		topic, found := m.topic(req, t)
		for j, p := range t.Partitions {
			at := partitionKey{topic.Name, p.Partition}
			o := offset{at: p.Offset, epoch: -1, committed: now}
			if req.Version >= 6 {
				o.epoch = p.LeaderEpoch
			}
			if p.Metadata != nil {
				o.metadata = *p.Metadata
			}
			if req.Version <= 4 && req.RetentionTimeMillis >= 0 {
				o.retention = time.Duration(max(1, min(req.RetentionTimeMillis, maxMilliseconds))) * time.Millisecond
			}
			code := m.storable(g, at, o, offsets, bytes)
			if !found || p.Partition < 0 || p.Partition >= topic.Partitions {
				code = kerr.UnknownTopicOrPartition.Code
				if req.Version >= 10 && !found {
					code = kerr.UnknownTopicID.Code
				}
			}
			if res.Topics[i].Partitions[j].ErrorCode = code; code == 0 {
				offsets[at] = o
				bytes += o.bytes(at)
				keep = append(keep, Row{offsetKey(g.name, at), o.value()})
			}
		}
	}
	if len(keep) == 0 {
		m.reply(r.token, res)
		return
	}
	m.store(g, keep, offsets)
	m.answerAfter(g.offsetWrite, r.token, func(failed bool) kmsg.Response {
		if failed {
			return refuseCommit(res, kerr.CoordinatorNotAvailable.Code)
		}
		return res
	})
}

// store writes offsets, which are visible once they are durable. Until then, they take their place beside those that
// they replace.
func (m *machine) store(g *group, keep []Row, offsets map[partitionKey]offset) {
	if !g.persisted {
		if g.state == empty {
			g.empty = max(g.empty, m.stamp())
		}
		keep = append(m.allRows(g), keep...)
	}
	for p, o := range offsets {
		g.inflight[p]++
		m.countOffset(g, o.bytes(p))
	}
	whole := !g.persisted
	g.offsetWrite = m.write(g, keep, func(failed bool) {
		g.persisted = g.persisted || (whole && !failed)
		for p, o := range offsets {
			if g.inflight[p]--; g.inflight[p] == 0 {
				delete(g.inflight, p)
			}
			was, ok := g.offsets[p]
			if failed {
				m.countOffset(g, -o.bytes(p))
				if !ok {
					g.stray[p] = true
				}
				continue
			}
			if ok {
				m.countOffset(g, -was.bytes(p))
			}
			g.offsets[p] = o
			delete(g.stray, p)
			if at := m.expires(g, o); g.expiry == 0 || at < g.expiry {
				g.expiry = at
			}
		}
		if len(g.stray) > 0 && g.expiry == 0 {
			g.expiry = m.firstExpiry(g)
		}
	})
}

// committer returns the group of a commit, if there is one, and the code that refuses the commit.
func (m *machine) committer(r request, req *kmsg.OffsetCommitRequest) (*group, int16) {
	g, n := m.groups[req.Group], 0
	for _, t := range req.Topics {
		n += len(t.Partitions)
	}
	switch {
	case len(req.Group) > m.cfg.Limits.Name: // Apache Kafka allows the empty name, without members
		return nil, kerr.InvalidGroupID.Code
	case m.cfg.Forbidden(r.client, req.Group):
		return nil, kerr.GroupAuthorizationFailed.Code
	case n > m.cfg.Limits.CommitPartitions:
		return nil, kerr.InvalidCommitOffsetSize.Code
	case g == nil && req.Generation >= 0:
		return nil, kerr.IllegalGeneration.Code
	case g == nil && m.full(r.client):
		return nil, kerr.InvalidCommitOffsetSize.Code
	case g == nil:
		return m.create(req.Group, r.client.Credential), 0
	case g.state == dead:
		return g, kerr.CoordinatorNotAvailable.Code
	case g.state == empty && req.Generation < 0:
		return g, 0
	}
	x, code := g.check(req.MemberID, req.InstanceID)
	switch {
	case code != 0:
		return g, code
	case req.Generation != g.generation:
		return g, kerr.IllegalGeneration.Code
	case g.state == completing:
		return g, kerr.RebalanceInProgress.Code
	}
	x.until = m.now + x.session
	return g, 0
}

func (m *machine) topic(req *kmsg.OffsetCommitRequest, t kmsg.OffsetCommitRequestTopic) (Topic, bool) {
	if req.Version >= 10 {
		return m.cfg.Topics.ByID(t.TopicID)
	}
	return m.cfg.Topics.ByName(t.Topic)
}

// storable returns the code that refuses an offset for which there is no room beside others of the commit.
func (m *machine) storable(g *group, p partitionKey, o offset, others map[partitionKey]offset, bytes int) int16 {
	l := m.cfg.Limits
	was, replaces := g.offsets[p]
	grow := o.bytes(p)
	if replaces {
		grow -= was.bytes(p)
	}
	bytes += grow
	switch {
	case len(o.metadata) > l.MetadataBytes:
		return kerr.OffsetMetadataTooLarge.Code
	case !replaces && g.inflight[p] == 0 && len(g.offsets)+len(g.inflight)+len(g.stray)+len(others) >= l.Offsets,
		grow > 0 && (g.offsetBytes+bytes > l.GroupOffsetBytes || m.offsetBytes+bytes > l.OffsetBytes):
		return kerr.InvalidCommitOffsetSize.Code
	}
	return 0
}

func commitResponse(req *kmsg.OffsetCommitRequest) *kmsg.OffsetCommitResponse {
	res := kmsg.NewPtrOffsetCommitResponse()
	res.Version = req.Version
	for _, t := range req.Topics {
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic, topic.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			one := kmsg.NewOffsetCommitResponseTopicPartition()
			one.Partition = p.Partition
			topic.Partitions = append(topic.Partitions, one)
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}

// refuseCommit gives a code to all partitions that have none.
func refuseCommit(res *kmsg.OffsetCommitResponse, code int16) *kmsg.OffsetCommitResponse {
	for i := range res.Topics {
		for j := range res.Topics[i].Partitions {
			if p := &res.Topics[i].Partitions[j]; p.ErrorCode == 0 {
				p.ErrorCode = code
			}
		}
	}
	return res
}

// deleteOffsets removes offsets that no member reads on from.
func (m *machine) deleteOffsets(r request, req *kmsg.OffsetDeleteRequest) {
	res := kmsg.NewPtrOffsetDeleteResponse()
	res.Version = req.Version
	g := m.groups[req.Group]
	switch {
	case req.Group == "" || len(req.Group) > m.cfg.Limits.Name:
		res.ErrorCode = kerr.InvalidGroupID.Code
	case m.cfg.Forbidden(r.client, req.Group):
		res.ErrorCode = kerr.GroupAuthorizationFailed.Code
	case g == nil, g.state == dead:
		res.ErrorCode = kerr.GroupIDNotFound.Code
	case g.state != empty && g.kind != consumer:
		res.ErrorCode = kerr.NonEmptyGroup.Code
	}
	if res.ErrorCode != 0 {
		m.reply(r.token, res)
		return
	}
	var gone []partitionKey
	subscribed := g.subscriptions()
	for _, t := range req.Topics {
		topic := kmsg.NewOffsetDeleteResponseTopic()
		topic.Topic = t.Topic
		known, exists := m.cfg.Topics.ByName(t.Topic)
		for _, p := range t.Partitions {
			one := kmsg.NewOffsetDeleteResponseTopicPartition()
			one.Partition = p.Partition
			at := partitionKey{t.Topic, p.Partition}
			_, committed := g.offsets[at]
			switch {
			case subscribed(t.Topic):
				one.ErrorCode = kerr.GroupSubscribedToTopic.Code
			case committed, g.stray[at]:
				gone = append(gone, at)
			case !exists || p.Partition < 0 || p.Partition >= known.Partitions:
				one.ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
			topic.Partitions = append(topic.Partitions, one)
		}
		res.Topics = append(res.Topics, topic)
	}
	if len(gone) == 0 {
		m.reply(r.token, res)
		return
	}
	m.erase(g, gone, nil)
	m.answerAfter(g.offsetWrite, r.token, func(failed bool) kmsg.Response {
		if failed {
			res.Topics, res.ErrorCode = nil, kerr.CoordinatorNotAvailable.Code
		}
		return res
	})
}

// erase removes offsets once that is durable.
func (m *machine) erase(g *group, gone []partitionKey, done func(failed bool)) {
	var remove []Row
	for _, p := range gone {
		remove = append(remove, Row{Key: offsetKey(g.name, p)})
		g.erasing[p] = true
	}
	g.offsetWrite = m.write(g, remove, func(failed bool) {
		for _, p := range gone {
			delete(g.erasing, p)
			if failed {
				g.persisted = false // some may have been removed
				continue
			}
			if o, ok := g.offsets[p]; ok {
				m.countOffset(g, -o.bytes(p))
			}
			delete(g.offsets, p)
			delete(g.stray, p)
		}
		if done != nil {
			done(failed)
		}
	})
}

// consumer is the type of protocol whose metadata name the topics that a member reads.
const consumer = "consumer"

// subscriptions reports whether members may read a topic. A member whose metadata cannot be read may read all.
func (g *group) subscriptions() func(topic string) bool {
	topics := map[string]bool{}
	for _, x := range g.members {
		for _, p := range x.protocols {
			var of kmsg.ConsumerMemberMetadata
			if of.ReadFrom(slices.Clone(p.metadata)) != nil {
				return func(string) bool { return true }
			}
			for _, t := range of.Topics {
				topics[t] = true
			}
		}
	}
	return func(topic string) bool { return topics[topic] }
}

// expires returns the stamp at which an offset expires while the group is empty.
func (m *machine) expires(g *group, o offset) time.Duration {
	kept := min(m.cfg.Retention, time.Duration(maxMilliseconds)*time.Millisecond)
	switch {
	case m.cfg.Permanent(g.name):
		kept = time.Duration(maxMilliseconds) * time.Millisecond
	case o.retention > 0:
		kept = o.retention
	}
	return max(o.committed, g.empty) + kept
}

// firstExpiry returns the stamp at which something of an empty group expires.
func (m *machine) firstExpiry(g *group) time.Duration {
	first := time.Duration(0)
	for _, o := range g.offsets {
		if at := m.expires(g, o); first == 0 || at < first {
			first = at
		}
	}
	if first == 0 {
		return g.empty + emptyGroupKept
	}
	return first
}

// expire removes what is old of an empty group: offsets, and after the last of them the group.
func (m *machine) expire(g *group) {
	var gone []partitionKey
	for p, o := range g.offsets {
		if m.expires(g, o) <= m.stamped {
			gone = append(gone, p)
		}
	}
	done := func(failed bool) {
		if failed {
			g.retry = m.now + expiryRetry
		}
		g.expiry = m.firstExpiry(g)
	}
	g.expiry = m.firstExpiry(g)
	switch {
	case g.unknown > 0 || len(g.pending) > 0: // it is in use
		g.retry = m.now + expiryRetry
	case g.expiry > m.stamped: // the old ones were replaced
	case len(gone) < len(g.offsets):
		g.expiry = 0 // until the outcome is known
		m.erase(g, gone, done)
	default:
		m.kill(g, done)
	}
}

// kill removes a group and its offsets once that is durable.
func (m *machine) kill(g *group, done func(failed bool)) {
	remove := []Row{{Key: groupKey(g.name)}}
	for p := range g.offsets {
		remove = append(remove, Row{Key: offsetKey(g.name, p)})
	}
	for _, others := range []iter.Seq[partitionKey]{maps.Keys(g.inflight), maps.Keys(g.stray)} {
		for p := range others { // these are, or may have been, written before
			remove = append(remove, Row{Key: offsetKey(g.name, p)})
		}
	}
	g.state = dead
	m.unpend(g, func(pendingMember) bool { return true })
	g.offsetWrite = m.write(g, remove, func(failed bool) {
		g.state = empty
		if g.persisted = false; !failed {
			m.countOffset(g, -g.offsetBytes)
			clear(g.offsets)
			clear(g.stray)
			m.drop(g)
		}
		done(failed)
	})
}
