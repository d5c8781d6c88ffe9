package kafka

import (
	"context"
	"strings"
	"testing"
)

// versionOf is a topic of events of chats under another name.
func versionOf(name string, partitions int32) Topic {
	t := Topics()[0]
	t.Name, t.Partitions = name, partitions
	return t
}

// A topic that was added while the broker runs is there after a restart with the same
// list, with what was written to it, and its partitions stay as they were made.
func TestAddedTopicStays(t *testing.T) {
	dir := t.TempDir()
	more := versionOf("messages.persisted.v2", 128)
	var kept Marks
	open := func(topics []Topic) (*Broker, error) {
		return OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", Topics: topics, Known: kept,
			Keep: func(_ context.Context, m Marks) error { kept = m; return nil }})
	}
	events := Topics()[:4:4] // those of search events leave too little room for 128 more partitions
	b, err := open(events)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a repetition does nothing
		if err := b.Add(t.Context(), more); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(t.Context(), versionOf(more.Name, 64)); err == nil ||
		!strings.Contains(err.Error(), "128 partitions") {
		t.Errorf("another number of partitions: %v", err)
	}
	c, err := NewProducer(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := Publish(t.Context(), c,
		&Record{Topic: more.Name, Partition: 100, Key: []byte("k"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.Close()
	at := Partition{Topic: more.Name, ID: 100}
	if kept[at].End != 1 {
		t.Errorf("what is on the disk of %s is not kept: %v", at, kept)
	}
	if b, err = open(append(events, more)); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var read []string
	if err := b.Read(t.Context(), at, func(r *Record) { read = append(read, string(r.Value)) }); err != nil ||
		len(read) != 1 || read[0] != "v" {
		t.Errorf("%q %v", read, err)
	}
}

// Files are reckoned with for all partitions that there are, and for the older segments
// that somebody may read.
func TestDescriptors(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 512 << 20,
		Topics: []Topic{versionOf("messages.persisted", 64)}})
	if n, older := b.Descriptors(); n != 128 || older != 256 {
		t.Errorf("%d and %d files", n, older)
	}
	if err := b.Add(t.Context(), versionOf("messages.persisted.v2", 128)); err != nil {
		t.Fatal(err)
	}
	if n, older := b.Descriptors(); n != 384 || older != 256 {
		t.Errorf("%d and %d files after a migration", n, older)
	}
}

// A trim leaves the segment of each partition that is written to, so there are never so
// many partitions that these fill the cap: nothing could be published any more.
func TestAddedTopicMustFitTheCap(t *testing.T) {
	b := openBrokerWith(t, BrokerConfig{Dir: t.TempDir(), MaxBytes: 512 << 20})
	for _, partitions := range []int32{99, 512, 1024} { // there are 158, and room for 256
		err := b.Add(t.Context(), versionOf("messages.persisted.v2", partitions))
		if err == nil || !strings.Contains(err.Error(), "no room") ||
			b.cluster.PartitionInfo("messages.persisted.v2", 0) != nil {
			t.Errorf("%d partitions: %v", partitions, err)
		}
	}
	// What was refused has left nothing.
	if err := b.Add(t.Context(), versionOf("messages.persisted.v2", 98)); err != nil {
		t.Error(err)
	}
	if err := b.Add(t.Context(), versionOf("chats.created.v2", 1)); err == nil {
		t.Error("one partition more was made")
	}
}
