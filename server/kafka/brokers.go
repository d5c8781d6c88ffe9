package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// advice is a setting of brokers that Parley advises (K-029…K-032).
type advice struct {
	key string
	// good reports whether a value will do; want says what would.
	good func(value string) bool
	want string
	why  string
}

func advised(replication int16) []advice {
	atLeast := func(n int) func(string) bool {
		return func(v string) bool {
			have, err := strconv.Atoi(v)
			return err == nil && have >= n
		}
	}
	no := func(v string) bool { return v == "false" }
	inSync := min(2, int(replication))
	return []advice{
		{
			"default.replication.factor", atLeast(int(replication)), fmt.Sprintf("%d or more", replication),
			"a topic that somebody makes without saying how has too few copies",
		},
		{
			"min.insync.replicas", atLeast(inSync), fmt.Sprintf("%d or more", inSync),
			"what Kafka keeps itself, of transactions and offsets, is acknowledged with too few copies",
		},
		{"unclean.leader.election.enable", no, "false", "a broker that lacks acknowledged records may become the leader of other topics"},
		{"auto.create.topics.enable", no, "false", "a name that is misspelt becomes a topic"},
	}
}

// Warnings tells, a line each, where the brokers' own configuration is not what is
// advised. It is no reason not to run: what counts for Parley's topics is declared on
// them, which [Admin.Verify] compares. A cluster that does not show its configuration
// is told of too.
func (a *Admin) Warnings(ctx context.Context, replication int16) ([]string, error) {
	meta, err := a.ad.BrokerMetadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list brokers: %w", err)
	}
	all, err := a.ad.DescribeBrokerConfigs(ctx, meta.Brokers.NodeIDs()...)
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
	for _, ad := range advised(replication) {
		wrong := map[string][]string{}
		for _, b := range all {
			for _, c := range b.Configs {
				if v := c.MaybeValue(); c.Key == ad.key && !ad.good(v) {
					wrong[v] = append(wrong[v], b.Name)
				}
			}
		}
		var found []string
		for value, names := range wrong {
			slices.Sort(names)
			found = append(found, fmt.Sprintf("%s of broker %s is %s, better %s: %s", ad.key, strings.Join(names, ", "), value, ad.want, ad.why))
		}
		slices.Sort(found)
		lines = append(lines, found...)
	}
	return lines
}
