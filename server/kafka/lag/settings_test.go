package lag_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
)

// K-029…K-032: brokers whose own settings are weak are reported, and it is no reason to
// refuse them.
func TestWarningsOfBrokers(t *testing.T) {
	t.Parallel()
	ask := func(replication int16, configs map[string]string) string {
		t.Helper()
		c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(configs))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		a, err := kafka.NewAdmin(kafka.Cluster{Brokers: c.ListenAddrs()})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if _, err := a.Apply(t.Context(), kafka.Replication); err != nil {
			t.Fatal(err)
		}
		lines, err := lag.Warnings(t.Context(), a.Client(), replication)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	good := map[string]string{
		"default.replication.factor": "3", "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
		"auto.create.topics.enable": "false",
	}
	if got := ask(3, good); got != "" {
		t.Errorf("of good ones: %s", got)
	}
	bad := map[string]string{
		"default.replication.factor": "1", "min.insync.replicas": "1", "unclean.leader.election.enable": "true",
		"auto.create.topics.enable": "true",
	}
	got := ask(3, bad)
	for _, want := range []string{
		"default.replication.factor of broker 0, 1, 2 is 1, better 3 or more",
		"min.insync.replicas of broker 0, 1, 2 is 1, better 2 or more",
		"unclean.leader.election.enable of broker 0, 1, 2 is true", "auto.create.topics.enable of broker 0, 1, 2 is true",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if got := ask(1, bad); strings.Contains(got, "replica") || !strings.Contains(got, "unclean") {
		t.Errorf("with one replica: %s", got)
	}
}
