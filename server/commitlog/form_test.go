package commitlog

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/store"
)

var eventPartition = Partition{Topic: FirstEventTopic + 3, Number: 1023}

// formsOfEvents are a batch of each form that the event log has, with and without a gap.
func formsOfEvents() map[string]*Append {
	records := []record.Record{
		{},
		{Key: []byte{}, Value: []byte{0, 0xff}, Time: 7, Headers: []record.Header{{Key: "h"}, {Key: "h", Value: []byte{}}}},
	}
	refs := record.References{PublishedIn: "gen", List: []record.Reference{
		{Chat: "chat_a", Version: 5, Schema: 2, Time: 1_800_000_000_000},
		{Chat: "chat_a", Version: 6, Schema: 2, Time: 1_800_000_000_000},
		{Chat: "chat_b", Version: 1, Schema: 3, Time: 1_800_000_000_001},
	}}
	return map[string]*Append{
		"records":          {Partition: eventPartition, Records: records},
		"records-gap":      {Partition: eventPartition, Records: records, Gap: 9},
		"references":       {Partition: eventPartition, References: refs},
		"references-gap":   {Partition: eventPartition, References: refs, Gap: 1 << 40},
		"records-one":      {Partition: eventPartition, Records: records[:1]},
		"references-later": {Partition: eventPartition, References: refs, Gap: 1},
	}
}

func placed(t *testing.T, a *Append, base int64) (*Batch, []byte) {
	t.Helper()
	d, err := newDraft(a, 1_800_000_000_123)
	if err != nil {
		t.Fatal(err)
	}
	return d.assignPosition(base, 1<<33, Producer{}), d.value
}

// A stored batch of records or references is read as it was; with any bit changed, at another
// place, or below a topic of the other kind it is refused.
func TestStoredForms(t *testing.T) {
	for name, a := range formsOfEvents() {
		want, v := placed(t, a, 1<<41)
		key := batchKey(a.Partition, want.End()-1)
		got, err := parseAt(key, v)
		if err != nil || !reflect.DeepEqual(got, want) || got.Form != a.form() || got.Gap != a.Gap {
			t.Fatalf("%s: %+v, %v; want %+v", name, got, err, want)
		}
		for i := range got.Count() {
			switch {
			case got.Form == References:
				if r := got.References(); r.List[i] != a.References.List[i] || r.PublishedIn != "gen" {
					t.Errorf("%s: reference %d is %+v", name, i, r)
				}
			case !reflect.DeepEqual(got.Record(i), a.Records[i]):
				t.Errorf("%s: record %d is %+v", name, i, got.Record(i))
			}
		}
		refused := func(what string, key, v []byte) {
			if b, err := parseAt(key, v); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("%s, %s: %+v, %v", name, what, b, err)
			}
		}
		for i := range v {
			for bit := range 8 {
				broken := bytes.Clone(v)
				broken[i] ^= 1 << bit
				refused(fmt.Sprintf("bit %d of byte %d", bit, i), key, broken)
			}
			refused(fmt.Sprintf("%d of %d bytes", i, len(v)), key, v[:i])
		}
		for version := range 256 { // more than one bit
			if broken := bytes.Clone(v); broken[0] != byte(version) {
				broken[0] = byte(version)
				refused(fmt.Sprint("version ", version), key, broken)
			}
		}
		refused("one position later", batchKey(a.Partition, want.End()), v)
		refused("a durable topic", batchKey(Partition{Topic: FirstEventTopic - 1}, want.End()-1), v)
	}
	_, v := placed(t, &Append{Partition: Partition{Topic: 1}, Messages: []*Message{{}}}, 0)
	if _, err := parseAt(batchKey(Partition{Topic: FirstEventTopic}, 0), v); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a message in the event log: %v", err)
	}
}

// What was written is read by all later versions; an encoding that changes is a new version.
// What is in the corpus is never rewritten:
//
//	go test ./server/commitlog -run GoldenEvents -add-golden NAME
func TestGoldenEvents(t *testing.T) {
	present := map[string][]byte{}
	for name, a := range formsOfEvents() {
		b, v := placed(t, a, 1<<41)
		present[name], present[name+"-key"] = v, batchKey(a.Partition, b.End()-1)
	}
	topic := EventTopic{Name: "messages.persisted", Number: FirstEventTopic + 3, Partitions: 1024,
		ID: TopicID{1, 2, 15: 3}}
	skipped := head{start: 5, end: 1 << 40, time: 1_800_000_000_123, void: [2]int64{1<<40 - 7, 1 << 40}}
	present["head"] = skipped.value()
	present["topic"] = appendSum(appendEntry(nil, topic))
	file := filepath.Join("testdata", "events.txt")
	if *addGolden != "" {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range present {
			fmt.Fprintf(f, "%s %s %x\n", *addGolden, name, v)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	corpus, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(corpus)) {
		fields := strings.Fields(line)
		v, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		lines++
		if fields[0] == "v1" && !bytes.Equal(v, present[fields[1]]) {
			t.Errorf("%s is written as %x, version 1 had %x", fields[1], present[fields[1]], v)
		}
		a, batch := formsOfEvents()[fields[1]]
		switch {
		case batch:
			want, _ := placed(t, a, 1<<41)
			if got, err := parseAt(batchKey(a.Partition, want.End()-1), v); err != nil ||
				!bytes.Equal(got.body, want.body) || got.Gap != want.Gap {
				t.Errorf("%s of %s is %+v, %v", fields[1], fields[0], got, err)
			}
		case fields[1] == "head":
			if got, err := parseHead(v); err != nil || got != skipped {
				t.Errorf("head of %s is %+v, %v", fields[0], got, err)
			}
		case fields[1] == "topic":
			if got, err := parseEntry(append([]byte{entryKey}, topic.Name...), v); err != nil || got != topic {
				t.Errorf("topic of %s is %+v, %v", fields[0], got, err)
			}
		}
	}
	if lines < 14 {
		t.Fatalf("the corpus has %d lines", lines)
	}
}

// Keys of all topics lie before the catalogue of the event log, and what moves before the
// event log.
func TestKeysOfTheEventLog(t *testing.T) {
	highest := batchKey(Partition{Topic: maxTopic, Number: MaxPartitions - 1}, 1<<63-1)
	if bytes.Compare(highest, []byte{catalogueKey}) >= 0 || inCatalogue(highest) {
		t.Error("a topic lies in the catalogue")
	}
	for _, key := range [][]byte{{catalogueKey}, {entryKey}, append([]byte{entryKey}, "\xff\xff"...)} {
		if !inCatalogue(key) || bytes.Compare(key, CarriedEnd()) < 0 {
			t.Errorf("%x is not in the catalogue, or moves", key)
		}
		if _, _, _, err := parseKey(key); err == nil {
			t.Errorf("%x is a key of a log", key)
		}
	}
	if inCatalogue([]byte{entriesEnd}) {
		t.Error("the catalogue has no end")
	}
	for _, number := range []uint64{1, FirstEventTopic - 1} {
		if key := headKey(Partition{Topic: number, Number: MaxPartitions - 1}); bytes.Compare(key, CarriedEnd()) >= 0 {
			t.Errorf("topic %d does not move", number)
		}
	}
	p := Partition{Topic: FirstEventTopic}
	for _, key := range [][]byte{headKey(p), batchKey(p, 0), {catalogueKey}} {
		if _, err := ParseCarried(key, nil); !errors.Is(err, ErrNotCarried) {
			t.Errorf("%x: %v", key, err)
		}
		if _, _, err := CarriedTo(key); !errors.Is(err, ErrNotCarried) {
			t.Errorf("%x: %v", key, err)
		}
		if err := Facts(key, nil, func([]byte) { t.Error("a fact") }); !errors.Is(err, ErrNotCarried) {
			t.Errorf("%x: %v", key, err)
		}
	}
}
