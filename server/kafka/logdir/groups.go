package logdir

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
)

// Group is a consumer group as the file of groups has it.
type Group struct {
	Name       string
	Kind       string // type of protocol of its members; "": it has had none
	Generation int32
	Commits    []Commit // by topic and partition
}

// Commit is a committed offset.
type Commit struct {
	Partition
	Offset   int64
	Epoch    int32 // of the leader
	Metadata string
	At       int64 // unix ms; 0 if it is not known
}

// groupEntry is the object of a record in the file of groups.
type groupEntry struct {
	Type       string  `json:"type"`
	Group      string  `json:"g"`
	Topic      string  `json:"t"`
	Partition  int32   `json:"p"`
	Offset     int64   `json:"o"`
	Epoch      int32   `json:"e"`
	Metadata   *string `json:"m"`
	At         *int64  `json:"lc"`
	Protocol   string  `json:"pt"`
	Generation int32   `json:"gen"`
	GroupEpoch int32   `json:"epoch848"`
}

// consumer is the type of protocol of consumers: those of KIP-848 have no other.
const consumer = "consumer"

// Groups returns the groups whose records can be read, by name.
func (r *Report) Groups() []Group {
	type commits map[Partition]Commit
	groups, offsets := map[string]Group{}, map[string]commits{}
	for b := r.groups; len(b) > 0; {
		n := int(binary.LittleEndian.Uint32(b)) + entryVersion
		var e groupEntry
		err := json.Unmarshal(b[entryObject:n], &e)
		b = b[n:]
		if err != nil {
			continue // the broker skips it, too
		}
		at := Partition{Topic: e.Topic, ID: e.Partition}
		switch e.Type {
		case "commit":
			c := Commit{Partition: at, Offset: e.Offset, Epoch: e.Epoch}
			if e.Metadata != nil {
				c.Metadata = *e.Metadata
			}
			if e.At != nil {
				c.At = *e.At
			}
			if offsets[e.Group] == nil {
				offsets[e.Group] = commits{}
			}
			offsets[e.Group][at] = c
		case "delete":
			delete(offsets[e.Group], at)
		case "meta":
			groups[e.Group] = Group{Name: e.Group, Kind: e.Protocol, Generation: e.Generation}
		case "meta848":
			groups[e.Group] = Group{Name: e.Group, Kind: consumer, Generation: e.GroupEpoch}
		}
	}
	for name := range offsets {
		g := groups[name]
		g.Name = name
		groups[name] = g
	}
	list := make([]Group, 0, len(groups))
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		for _, at := range slices.SortedFunc(maps.Keys(offsets[name]), Partition.Compare) {
			g.Commits = append(g.Commits, offsets[name][at])
		}
		list = append(list, g)
	}
	return list
}
