// Package capacity says what the declared topics are made for: the load that this
// version is declared to carry, and how long records are kept under it.
//
// It owns the figures and the sheet that operators read; the topics belong to package
// kafka. Concurrency: pure functions.
package capacity

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// load is the declared load of a topic.
type load struct {
	topic  string
	rate   float64 // records a second, at the busiest hour
	size   float64 // bytes of a record, with its key and headers, as the brokers keep it
	reason string
}

// Growth is how many times the declared load partitions are made for: their number
// never changes.
const Growth = 10

// The planned load of one partition. A consumer that works on one key at a time does 1,100
// records a second if each takes it a millisecond (server/BENCHMARKS.md); half of that
// leaves room to catch up.
const (
	partitionRate  = 500.0   // records a second
	partitionBytes = 1 << 20 // bytes a second
)

// loads is the load that this version is declared for.
var loads = []load{
	{kafka.MessagesPersisted, 2000, 450, "100,000 people at once, each of whom sends a message in 50 s"},
	{kafka.MembershipsChanged, 400, 400, "40 new groups of 10 in a second, or people who join and leave"},
	{kafka.ChatsCreated, 50, 600, "40 new groups and 10 direct chats in a second"},
	{kafka.DeadLetters, 2, 1200, "one record in a thousand, for a while"},
	{"search_impression_v1", 200, 700, "100,000 people at once, each of whom looks at a page of results in 8 min"},
	{"search_impression_v1.dlq", 1, 1500, "one event in a hundred, for a while"},
	{"search_result_summary_v1", 200, 500, "one with each page"},
	{"search_result_summary_v1.dlq", 1, 1300, "as above"},
	{"search_click_v1", 100, 450, "every second page leads to a result"},
	{"search_click_v1.dlq", 1, 1200, "as above"},
	{"search_dwell_v1", 100, 450, "one with each result that was opened"},
	{"search_dwell_v1.dlq", 1, 1200, "as above"},
	{"ac_impression_v1", 400, 700, "two lists of suggestions for each search"},
	{"ac_impression_v1.dlq", 1, 1500, "as above"},
	{"ac_select_v1", 100, 450, "every second search begins with a suggestion"},
	{"ac_select_v1.dlq", 1, 1200, "as above"},
}

func setting(t kafka.Topic, name string) float64 {
	n, err := strconv.ParseFloat(t.Configs[name], 64)
	if err != nil {
		return 0
	}
	return n
}

// Retention is how long a record of the topic can be read again, at least, if so many
// bytes a second are written to it, evenly over its partitions: the broker deletes at
// whichever is reached first, the topic's time or its bytes.
func Retention(t kafka.Topic, bytesPerSecond float64) time.Duration {
	kept := time.Duration(setting(t, "retention.ms")) * time.Millisecond
	if bytesPerSecond <= 0 {
		return kept
	}
	seconds := setting(t, "retention.bytes") * float64(t.Partitions) / bytesPerSecond
	if seconds >= kept.Seconds() {
		return kept
	}
	return time.Duration(seconds * float64(time.Second))
}

// Sheet is the sheet that shows what the topics are made for, as Markdown; it stands
// in server/deploy/capacity.md.
func Sheet() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What the topics are made for

Made by `+"`workers kafka capacity`"+`; a test holds it against the declared topics.

A count of partitions never changes, so it is chosen for %d times the load that this version is declared for. One
partition is planned for at most %.0f records and %s a second: about half of what a consumer does that takes a
millisecond for each record and works on one at a time.

| topic | partitions | declared load, at the busiest hour | record | in a partition at %d times that | used of the plan |
|---|---|---|---|---|---|
`, Growth, partitionRate, bytesText(partitionBytes), Growth)
	topics := map[string]kafka.Topic{}
	for _, t := range kafka.Topics() {
		topics[t.Name] = t
	}
	for _, l := range loads {
		t := topics[l.topic]
		rate := Growth * l.rate / float64(t.Partitions)
		fmt.Fprintf(&b, "| %s | %d | %.0f/s: %s | %s | %.0f/s, %s/s | %.0f %% |\n",
			t.Name, t.Partitions, l.rate, l.reason, bytesText(l.size), rate, bytesText(rate*l.size), 100*used(t, l))
	}
	b.WriteString(`
## How long records can be read again

A broker deletes a record when its time is over or when its partition is larger than its bytes, whichever comes first.
So what a reader can count on is the lesser of both, here with records spread evenly; a partition with a very busy chat
has less. With ` + strconv.Itoa(kafka.Replication) + ` replicas the cluster needs that many times the bytes.

| topic | time | bytes of a partition | kept at the declared load | at ` + strconv.Itoa(Growth) + ` times that | on disk then, one copy |
|---|---|---|---|---|---|
`)
	for _, l := range loads {
		t := topics[l.topic]
		rate := l.rate * l.size
		limit := Retention(t, Growth*rate)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", t.Name, days(Retention(t, 0)),
			bytesText(setting(t, "retention.bytes")),
			days(Retention(t, rate)), days(limit), bytesText(Growth*rate*limit.Seconds()))
	}
	b.WriteString(`
## What brokers should be set to

What counts for these topics is declared on them. The brokers' own settings count for the topics of others and of Kafka
itself; ` + "`workers kafka verify`" + ` warns of these:

| setting | value | otherwise |
|---|---|---|
`)
	for _, ad := range lag.Advised(kafka.Replication) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", ad.Key, ad.Want, ad.Why)
	}
	return b.String()
}

// used is the share of a partition's plan that a load takes, times Growth.
func used(t kafka.Topic, l load) float64 {
	rate := Growth * l.rate / float64(t.Partitions)
	return max(rate/partitionRate, rate*l.size/partitionBytes)
}

func days(d time.Duration) string { return fmt.Sprintf("%.1f days", d.Hours()/24) }

func bytesText(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.3g TiB", n)
}
