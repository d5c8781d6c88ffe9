package group

import (
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A group that comes from elsewhere has its offsets, and its generation never falls. An offset expires by its own
// time if the group never had members, else a retention after the start at the earliest.
func TestKeptGroups(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	old := now.Add(-8 * 24 * time.Hour)
	store := &memory{rows: map[string][]byte{}}
	for _, k := range []Kept{
		{Name: "g", Generation: 41, Kind: "consumer", Owner: "reader", Offsets: []KeptOffset{
			{Topic: "events", Partition: 3, Offset: 12, Epoch: -1, Metadata: "m", Committed: old},
			{Topic: "events", Partition: 4, Offset: 13, Epoch: 2, Committed: old.Add(time.Hour)},
		}},
		{Name: "none"},
		{Name: "tool", Owner: "reader", Offsets: []KeptOffset{
			{Topic: "events", Offset: 1, Committed: now}, {Topic: "events", Partition: 1, Offset: 2, Committed: old},
			{Topic: "events", Partition: 2, Offset: 3, Committed: time.Time{}},
		}},
	} {
		testkit.Must(t, store.Write(t.Context(), Rows(k)))
	}
	kept := maps.Clone(store.rows)
	c := started(t, store)
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version = 8
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g"}}
	res := testkit.Value(c.Handle(t.Context(), Client{}, fetch))(t).(*kmsg.OffsetFetchResponse)
	got := map[int32]kmsg.OffsetFetchResponseGroupTopicPartition{}
	for _, p := range res.Groups[0].Topics[0].Partitions {
		got[p.Partition] = p
	}
	if p := got[3]; len(got) != 2 || p.Offset != 12 || p.LeaderEpoch != -1 || *p.Metadata != "m" ||
		got[4].Offset != 13 || got[4].LeaderEpoch != 2 {
		t.Errorf("offsets are %+v", got)
	}
	c.Close()
	all := noRows()
	for k, v := range kept {
		testkit.Must(t, all.add(Row{[]byte(k), v}))
	}
	m := newMachine(Config{Topics: tested}.withDefaults(), all, moment{wall: now})
	for _, want := range []struct {
		group   string
		at      partitionKey
		expires time.Time // less a retention
	}{
		{"g", partitionKey{"events", 3}, now}, {"g", partitionKey{"events", 4}, now},
		{"tool", partitionKey{"events", 0}, now},
		{"tool", partitionKey{"events", 1}, old}, {"tool", partitionKey{"events", 2}, time.UnixMilli(1)},
	} {
		g := m.groups[want.group]
		at := m.expires(g, g.offsets[want.at]) - retention
		if at != time.Duration(want.expires.UnixMilli())*time.Millisecond {
			t.Errorf("%s, partition %d: expires a retention after %s", want.group, want.at.partition, at)
		}
	}
	if g := m.groups["g"]; g.generation != 41 || g.kind != "consumer" || g.owner != "reader" {
		t.Errorf("g has the header %+v", g.header)
	}
	testkit.Equal(t, "offsets of none", len(m.groups["none"].offsets), 0)
}
