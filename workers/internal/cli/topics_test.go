package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// K-029, K-030, K-031: verify warns of brokers whose own settings are weak, and that is no
// difference: what counts is declared on the topics.
func TestTopicsVerifyWarns(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(map[string]string{
		"default.replication.factor": "1", "min.insync.replicas": "1", "unclean.leader.election.enable": "true",
		"auto.create.topics.enable": "false",
	}))
	testkit.Must(t, err)
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
		code, stdout, stderr := run(t, nil, append(flags[:2:2], "kafka", tt.verb)...)
		if code != tt.code || strings.Count(stdout, "warning: ") != tt.warns || !strings.Contains(stdout, tt.says) {
			t.Errorf("step %d, %s: exit code %d, %q, %q", i, tt.verb, code, stdout, stderr)
		}
	}
}

// The topics of Kafka that servers made for durable topics are shown, and what is wrong with
// them.
func TestKafkaMessages(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	testkit.Must(t, err)
	defer cluster.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	testkit.Must(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	for i, step := range []struct {
		set  map[string]string
		code int
		says string
	}{
		{nil, cmdline.ExitOK, "0 topics of Kafka, without problems"},
		{map[string]string{"retention.ms": "3600000"}, cmdline.ExitOK,
			"parley.t.orders  2           3         0        1h0m0s"},
		{map[string]string{"cleanup.policy": "compact"}, exitDiffer, "parley.t.orders: cleanup.policy is compact"},
	} {
		for key, value := range step.set {
			settings := map[string]*string{"unclean.leader.election.enable": kadm.StringPtr("false")}
			_, err := admin.CreateTopic(t.Context(), 2, 3, settings, "parley.t.orders")
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
				t.Fatal(err)
			}
			change := []kadm.AlterConfig{{Name: key, Value: &value}}
			_, err = admin.AlterTopicConfigs(t.Context(), change, "parley.t.orders")
			testkit.Must(t, err)
		}
		code, stdout, stderr := run(t, nil, "--kafka-brokers", strings.Join(cluster.ListenAddrs(), ","), "kafka", "messages")
		if code != step.code || !strings.Contains(stdout, step.says) {
			t.Errorf("step %d: exit code %d, %q, %q", i, code, stdout, stderr)
		}
	}
}
