package group

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetch answers with offsets. It waits for the commits of its groups that came before it, so that a member which
// joined after another one's commit does not read what that one has read.
func (m *machine) fetch(r request, req *kmsg.OffsetFetchRequest) {
	after := m.finished
	names := []string{req.Group}
	if req.Version >= 8 {
		names = nil
		for _, g := range req.Groups {
			names = append(names, g.Group)
		}
	}
	for _, name := range names {
		if g := m.groups[name]; g != nil {
			after = max(after, g.offsetWrite)
		}
	}
	m.answerAfter(after, r.token, func(bool) kmsg.Response {
		res := kmsg.NewPtrOffsetFetchResponse()
		res.Version = req.Version
		if req.Version < 8 {
			m.fetchOne(req, res)
			return res
		}
		seen := map[string]bool{}
		for _, g := range req.Groups {
			if !seen[g.Group] { // an answer is not larger than what is stored
				seen[g.Group] = true
				res.Groups = append(res.Groups, m.fetchGroup(g, req.Version))
			}
		}
		return res
	})
}

// fetchOne answers the versions for one group, in the form of those for many.
func (m *machine) fetchOne(req *kmsg.OffsetFetchRequest, res *kmsg.OffsetFetchResponse) {
	of := kmsg.OffsetFetchRequestGroup{Group: req.Group}
	if req.Topics != nil || req.Version < 2 {
		of.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
	}
	for _, t := range req.Topics {
		of.Topics = append(of.Topics, kmsg.OffsetFetchRequestGroupTopic{Topic: t.Topic, Partitions: t.Partitions})
	}
	got := m.fetchGroup(of, req.Version)
	res.ErrorCode = got.ErrorCode
	if req.Version < 2 && got.ErrorCode != 0 { // errors are those of partitions
		for _, t := range of.Topics {
			topic := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				topic.Partitions = append(topic.Partitions, noOffset(p, got.ErrorCode))
			}
			got.Topics = append(got.Topics, topic)
		}
	}
	for _, t := range got.Topics {
		topic := kmsg.OffsetFetchResponseTopic{Topic: t.Topic}
		for _, p := range t.Partitions {
			topic.Partitions = append(topic.Partitions, kmsg.OffsetFetchResponseTopicPartition(p))
		}
		res.Topics = append(res.Topics, topic)
	}
}

func noOffset(partition int32, code int16) kmsg.OffsetFetchResponseGroupTopicPartition {
	p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = partition, -1, -1, new(string), code
	return p
}

// fetchGroup returns the offsets of a group: those that are asked for or, if topics are null, all.
func (m *machine) fetchGroup(req kmsg.OffsetFetchRequestGroup, version int16) kmsg.OffsetFetchResponseGroup {
	res := kmsg.NewOffsetFetchResponseGroup()
	res.Group = req.Group
	if len(req.Group) > m.cfg.Limits.Name {
		res.ErrorCode = kerr.InvalidGroupID.Code
		return res
	}
	var offsets map[partitionKey]offset
	if g := m.groups[req.Group]; g != nil && g.state != dead {
		offsets = g.offsets
	}
	if req.Topics == nil {
		req.Topics = m.committed(offsets, version)
	}
	seen := map[partitionKey]bool{}
	for _, t := range req.Topics {
		name, found := t.Topic, true
		if version >= 10 {
			var topic Topic
			topic, found = m.cfg.Topics.ByID(t.TopicID)
			name = topic.Name
		}
		topic := kmsg.OffsetFetchResponseGroupTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			at := partitionKey{name, p}
			one := noOffset(p, 0)
			switch o, ok := offsets[at]; {
			case !found:
				one.ErrorCode = kerr.UnknownTopicID.Code
			case seen[at]:
				continue
			case ok:
				one.Offset, one.LeaderEpoch, one.Metadata = o.at, o.epoch, &o.metadata
			}
			seen[at] = true
			topic.Partitions = append(topic.Partitions, one)
		}
		res.Topics = append(res.Topics, topic)
	}
	return res
}

// committed returns a request for all offsets. By id, topics that are no more cannot be named, and are left out.
func (m *machine) committed(offsets map[partitionKey]offset, version int16) (all []kmsg.OffsetFetchRequestGroupTopic) {
	for _, p := range sortedPartitions(offsets) {
		if len(all) == 0 || all[len(all)-1].Topic != p.topic {
			topic, ok := m.cfg.Topics.ByName(p.topic)
			if !ok && version >= 10 {
				continue
			}
			all = append(all, kmsg.OffsetFetchRequestGroupTopic{Topic: p.topic, TopicID: topic.ID})
		}
		t := &all[len(all)-1]
		t.Partitions = append(t.Partitions, p.partition)
	}
	return all
}

func sortedPartitions(offsets map[partitionKey]offset) []partitionKey {
	all := make([]partitionKey, 0, len(offsets))
	for p := range offsets {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b partitionKey) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		return int(a.partition) - int(b.partition)
	})
	return all
}

// list names the groups.
func (m *machine) list(r request, req *kmsg.ListGroupsRequest) {
	res := kmsg.NewPtrListGroupsResponse()
	res.Version = req.Version
	has := func(filter []string, what string) bool {
		return len(filter) == 0 || slices.ContainsFunc(filter, func(s string) bool { return strings.EqualFold(s, what) })
	}
	for name, g := range m.groups {
		if !has(req.StatesFilter, g.state.String()) || !has(req.TypesFilter, "classic") {
			continue
		}
		one := kmsg.NewListGroupsResponseGroup()
		one.Group, one.ProtocolType, one.GroupState, one.GroupType = name, g.kind, g.state.String(), "classic"
		res.Groups = append(res.Groups, one)
	}
	slices.SortFunc(res.Groups, func(a, b kmsg.ListGroupsResponseGroup) int { return strings.Compare(a.Group, b.Group) })
	m.reply(r.token, res)
}

// The operations of a client on a group, in the bits of Kafka's operations: describe, or also read and delete.
const (
	describeOperations = 1 << 8
	usingOperations    = describeOperations | 1<<3 | 1<<6
)

// describe says what members groups have, each once.
func (m *machine) describe(r request, req *kmsg.DescribeGroupsRequest) {
	res := kmsg.NewPtrDescribeGroupsResponse()
	res.Version = req.Version
	seen := map[string]bool{}
	for _, name := range req.Groups {
		if seen[name] {
			continue
		}
		seen[name] = true
		one := kmsg.NewDescribeGroupsResponseGroup()
		one.Group = name
		g := m.groups[name]
		switch {
		case len(name) > m.cfg.Limits.Name:
			one.ErrorCode = kerr.InvalidGroupID.Code
		case g == nil || g.state == dead:
			one.State = dead.String()
			if req.Version >= 6 {
				one.ErrorCode = kerr.GroupIDNotFound.Code
				text := "Group " + name + " not found."
				one.ErrorMessage = &text
			}
		default:
			g.describe(&one)
			switch {
			case !req.IncludeAuthorizedOperations:
			case m.cfg.Forbidden(r.client, name):
				one.AuthorizedOperations = describeOperations
			default:
				one.AuthorizedOperations = usingOperations
			}
		}
		res.Groups = append(res.Groups, one)
	}
	m.reply(r.token, res)
}

func (g *group) describe(to *kmsg.DescribeGroupsResponseGroup) {
	to.State, to.ProtocolType = g.state.String(), g.kind
	if g.state == stable {
		to.Protocol = g.protocol
	}
	for _, x := range g.members {
		one := kmsg.NewDescribeGroupsResponseGroupMember()
		one.MemberID, one.InstanceID, one.ClientID, one.ClientHost = x.id, x.instance, x.client.ID, x.client.Host
		if g.state == stable { // before, there is no protocol that they are of
			one.ProtocolMetadata, one.MemberAssignment = x.metadata(g.protocol), x.assignment
		}
		to.Members = append(to.Members, one)
	}
}

// deleteGroups removes groups without members.
func (m *machine) deleteGroups(r request, req *kmsg.DeleteGroupsRequest) {
	res := kmsg.NewPtrDeleteGroupsResponse()
	res.Version = req.Version
	after := m.finished
	for _, name := range req.Groups {
		one := kmsg.NewDeleteGroupsResponseGroup()
		one.Group = name
		g := m.groups[name]
		switch {
		case len(name) > m.cfg.Limits.Name:
			one.ErrorCode = kerr.InvalidGroupID.Code
		case m.cfg.Forbidden(r.client, name):
			one.ErrorCode = kerr.GroupAuthorizationFailed.Code
		case g == nil || g.state == dead:
			one.ErrorCode = kerr.GroupIDNotFound.Code
		case g.state != empty:
			one.ErrorCode = kerr.NonEmptyGroup.Code
		default:
			m.kill(g, func(bool) { g.expiry = m.firstExpiry(g) })
			m.touched(g)
			after = g.offsetWrite
		}
		res.Groups = append(res.Groups, one)
	}
	m.answerAfter(after, r.token, func(failed bool) kmsg.Response {
		for i := range res.Groups {
			if failed && res.Groups[i].ErrorCode == 0 {
				res.Groups[i].ErrorCode = kerr.CoordinatorNotAvailable.Code
			}
		}
		return res
	})
}
