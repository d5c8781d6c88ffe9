package lag

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/parley-chat/parley/server/kafka"
)

// Advice is a setting that Parley recommends for brokers, because their defaults lose or
// misplace records.
type Advice struct {
	Key string
	// good reports whether a value is acceptable; Want describes acceptable values.
	good func(value string) bool
	Want string
	Why  string
}

// Advised are the settings that are advised where topics have so many replicas.
func Advised(replication int16) []Advice {
	atLeast := func(n int) func(string) bool {
		return func(v string) bool {
			have, err := strconv.Atoi(v)
			return err == nil && have >= n
		}
	}
	no := func(v string) bool { return v == "false" }
	inSync := min(2, int(replication))
	return []Advice{
		{
			"default.replication.factor", atLeast(int(replication)), fmt.Sprintf("%d or more", replication),
			"a topic that is created without a factor has too few copies",
		},
		{
			"min.insync.replicas", atLeast(inSync), fmt.Sprintf("%d or more", inSync),
			"what Kafka keeps itself, of transactions and offsets, is acknowledged with too few copies",
		},
		{"unclean.leader.election.enable", no, "false",
			"a broker that lacks acknowledged records may become the leader of other topics"},
		{"auto.create.topics.enable", no, "false", "a name that is misspelt becomes a topic"},
	}
}

// Warnings returns a line for each setting of the brokers that is not as recommended, and
// for a cluster that does not show its settings. They are no reason not to run: the
// settings that matter to Parley's topics are declared on the topics, and
// [kafka.Admin.Verify] compares those.
func Warnings(ctx context.Context, c *kafka.Client, replication int16) ([]string, error) {
	ad := kadm.NewClient(c)
	meta, err := ad.BrokerMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list brokers: %w", err)
	}
	all, err := ad.DescribeBrokerConfigs(ctx, meta.Brokers.NodeIDs()...)
	if err == nil {
		for _, b := range all {
			err = errors.Join(err, b.Err)
		}
	}
	if errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return []string{"the brokers' own configuration cannot be read: this user may not describe the cluster"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: describe brokers: %w", err)
	}
	return warnings(all, replication), nil
}

// warnings puts brokers with the same value into one line.
func warnings(all kadm.ResourceConfigs, replication int16) (lines []string) {
	for _, ad := range Advised(replication) {
		wrong := map[string][]string{}
		for _, b := range all {
			for _, c := range b.Configs {
				if v := c.MaybeValue(); c.Key == ad.Key && !ad.good(v) {
					wrong[v] = append(wrong[v], b.Name)
				}
			}
		}
		var found []string
		for value, names := range wrong {
			slices.Sort(names)
			found = append(found, fmt.Sprintf("%s of broker %s is %s, better %s: %s", ad.Key, strings.Join(names, ", "), value,
				ad.Want, ad.Why))
		}
		slices.Sort(found)
		lines = append(lines, found...)
	}
	return lines
}
