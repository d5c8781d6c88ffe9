package capacity

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

var rewriteCapacity = flag.Bool("rewrite-capacity", false, "rewrite the capacity sheet")

// K-056: at ten times the declared load no partition has more than one is planned for,
// every topic has a load, and the sheet that operators read is the one computed.
func TestPartitionsSufficeForTenTimesTheLoad(t *testing.T) {
	if Growth != 10 {
		t.Errorf("made for %d times the load", Growth)
	}
	byName := map[string]load{}
	for _, l := range loads {
		byName[l.topic] = l
	}
	for _, topic := range kafka.Topics() {
		l, ok := byName[topic.Name]
		if !ok || l.rate <= 0 || l.size <= 0 || l.reason == "" {
			t.Errorf("%s has no declared load", topic.Name)
			continue
		}
		if u := used(topic, l); u > 1 {
			t.Errorf("%s: %d partitions carry %.0f %% of what they can", topic.Name, topic.Partitions, 100*u)
		}
	}
	if len(byName) != len(kafka.Topics()) {
		t.Errorf("loads of %d topics", len(byName))
	}
	const sheet = "../../deploy/capacity.md"
	if *rewriteCapacity {
		if err := os.WriteFile(sheet, []byte(Sheet()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(sheet); err != nil || string(text) != Sheet() {
		t.Errorf("%s is not what workers kafka capacity prints (%v)", sheet, err)
	}
}

// K-025: time or bytes, whichever is reached first.
func TestRetentionIsTheLesser(t *testing.T) {
	topic := kafka.Topic{Partitions: 4,
		Configs: map[string]string{"retention.ms": "604800000", "retention.bytes": "1000000"}}
	const week = 7 * 24 * time.Hour
	for rate, want := range map[float64]time.Duration{
		0:                         week, // nothing is written
		1:                         week,
		4e6 / (7 * 24 * 3600):     week, // both at once
		2 * 4e6 / (7 * 24 * 3600): week / 2,
		4e6:                       time.Second,
	} {
		if got := Retention(topic, rate); (got - want).Abs() > time.Millisecond {
			t.Errorf("at %g bytes/s kept for %s, not %s", rate, got, want)
		}
	}
	for _, l := range loads { // what is promised to readers at the declared load
		for _, topic := range kafka.Topics() {
			if topic.Name == l.topic && Retention(topic, l.rate*l.size) < week {
				t.Errorf("%s keeps records for %s", l.topic, Retention(topic, l.rate*l.size))
			}
		}
	}
}
