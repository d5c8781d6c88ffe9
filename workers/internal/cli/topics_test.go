package cli

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/parley-chat/parley/server/cmdline"
)

// K-029, K-030, K-031: verify warns of brokers whose own settings are weak, and that is no
// difference: what counts is declared on the topics.
func TestTopicsVerifyWarns(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{
		"default.replication.factor": "1", "min.insync.replicas": "1", "unclean.leader.election.enable": "true", "auto.create.topics.enable": "false",
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	flags := []string{"--kafka-brokers", strings.Join(cluster.ListenAddrs(), ",")}
	for i, tt := range []struct {
		verb  string
		code  int
		warns int
		says  string
	}{
		{"verify", exitDiffer, 3, "messages.persisted: is missing"},
		{"apply", cmdline.ExitOK, 0, "messages.persisted: created with 64 partitions"},
		{"verify", cmdline.ExitOK, 3, "warning: default.replication.factor of broker 0, 1, 2 is 1, better 3 or more"},
		{"verify", cmdline.ExitOK, 3, "topics are as declared"},
	} {
		code, stdout, stderr := run(t, nil, append(flags[:2:2], "topics", tt.verb)...)
		if code != tt.code || strings.Count(stdout, "warning: ") != tt.warns || !strings.Contains(stdout, tt.says) {
			t.Errorf("step %d, %s: exit code %d, %q, %q", i, tt.verb, code, stdout, stderr)
		}
	}
}
