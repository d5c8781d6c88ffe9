package topic

import (
	"strings"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// The time in which no process had the topics is no silence of a group: monitors and health say of it
// what detection goes by. It is near its timeout after four fifths of that, as if it had begun anew.
func TestSilenceAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		if err := x.attach("t", "g", "m").Detach(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		near := func() (texts []string) {
			m, err := x.Admin().Monitors(t.Context(), &topicv1.ListMonitorsRequest{
				Kinds: []topicv1.MonitorKind{topicv1.MonitorKind_MONITOR_KIND_NEAR_TIMEOUT}})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range m.GetFindings() {
				texts = append(texts, f.GetText())
			}
			g, err := x.Admin().Groups(t.Context(), &topicv1.ListGroupsRequest{Topic: "t"})
			if err != nil {
				t.Fatal(err)
			}
			problems := strings.Join(g.GetGroups()[0].GetProblems(), " ")
			if silent := strings.Contains(problems, "silent"); silent != (len(texts) > 0) {
				t.Errorf("health says %q, monitors %q", problems, texts)
			}
			return texts
		}
		x.stop()
		if err := x.store.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		x.start()
		time.Sleep(3 * time.Minute)
		if texts := near(); len(texts) > 0 {
			t.Errorf("3 minutes after a start: %q", texts)
		}
		time.Sleep(90 * time.Second)
		if texts := near(); len(texts) != 1 || !strings.HasPrefix(texts[0], "silent for 4m30s of the 5m0s") {
			t.Errorf("4.5 minutes after a start: %q", texts)
		}
	})
}
