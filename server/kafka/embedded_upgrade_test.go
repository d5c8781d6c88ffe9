package kafka

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/testkit"
)

// A log that an earlier version wrote, which declared fewer topics and other settings, is taken
// over without a warning. A list that has lost a topic of which there are records is damaged.
func TestUpgradeIsNoDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() (log string) {
		t.Helper()
		var said bytes.Buffer
		b, err := OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(&said, nil))})
		testkit.Must(t, err)
		if len(b.cluster.PartitionInfos(SearchTopics[0])) == 0 {
			t.Error("a topic is missing")
		}
		b.Close()
		return said.String()
	}
	var earlier []Topic
	for _, topic := range Topics() {
		if topic.Kind == Searches {
			continue
		}
		if topic.Name == ChatsCreated {
			topic.Configs = map[string]string{"max.message.bytes": "1000000"}
		}
		earlier = append(earlier, topic)
	}
	b, err := OpenBroker(BrokerConfig{Dir: dir, Listen: "127.0.0.1:0", Topics: earlier})
	testkit.Must(t, err)
	publish(t, b.Addr(), "1", "2")
	testkit.Must(t, b.Flush(t.Context()))
	b.Close()

	log := open()
	if strings.Contains(log, "WARN") || !strings.Contains(log, "the log takes over what this version declares") {
		t.Errorf("an upgrade: %s", log)
	}
	if log := open(); log != "" {
		t.Errorf("the next start: %s", log)
	}
	path := filepath.Join(dir, "topics.json")
	var list map[string]any
	testkit.Must(t, json.Unmarshal(testkit.Value(os.ReadFile(path))(t), &list))
	var left []any
	for _, topic := range list["topics"].([]any) {
		if topic.(map[string]any)["name"] != ChatsCreated {
			left = append(left, topic)
		}
	}
	list["topics"] = left
	testkit.Must(t, os.WriteFile(path, testkit.Value(json.Marshal(list))(t), 0o600))
	if log := open(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "has no topic "+ChatsCreated) {
		t.Errorf("a damaged list: %s", log)
	}
	if got := read(t, openBroker(t, dir).Addr(), 2); len(got) != 2 {
		t.Errorf("%q", got)
	}
}
