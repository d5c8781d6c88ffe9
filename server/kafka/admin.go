package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Replication is the declared replication factor: one broker may be down while another
// fails.
const Replication = 3

// Admin creates and checks the topics of a cluster. No other part of Parley creates a
// topic, so that none has settings that were not declared.
type Admin struct {
	c      *kgo.Client
	ad     *kadm.Client
	topics []Topic
}

// NewAdmin makes a client; Close must be called.
func NewAdmin(c Cluster) (*Admin, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(c.Options(), seeds(c.Addr()), kgo.ClientID("parley-admin"),
		kgo.MetadataMinAge(metadataMinAge))...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return &Admin{c: cl, ad: kadm.NewClient(cl), topics: Topics()}, nil
}

// Use makes an Admin manage other topics than the declared ones: the versions of them that
// are in use.
func (a *Admin) Use(topics []Topic) { a.topics = topics }

// Close closes the client.
func (a *Admin) Close() { a.c.Close() }

// Client is the connection itself, for requests about other things than topics.
func (a *Admin) Client() *Client { return a.c }

// Difference is a way in which a topic is not as declared.
type Difference struct {
	Topic string
	Text  string
	// Fatal says that nothing may be published or consumed: the topic is missing, or its
	// partitions would break the order of chats, or its cleanup policy would lose events.
	Fatal bool

	config bool // Apply corrects it
}

const isMissing = "is missing"

func (d Difference) missing() bool { return d.Text == isMissing }

// String is one line.
func (d Difference) String() string { return d.Topic + ": " + d.Text }

// configs are the declared ones; with fewer brokers than declared replicas fewer can
// be in sync.
func (t Topic) configs(replication int16) map[string]string {
	out := maps.Clone(t.Configs)
	if n, err := strconv.Atoi(out["min.insync.replicas"]); err == nil && int(replication) < n {
		out["min.insync.replicas"] = strconv.Itoa(int(replication))
	}
	return out
}

// Verify compares the topics of the cluster with the declared ones. replication is
// Replication, or less on a cluster of fewer brokers.
func (a *Admin) Verify(ctx context.Context, replication int16) ([]Difference, error) {
	declared := a.topics
	var names []string
	for _, t := range declared {
		names = append(names, t.Name)
	}
	have, err := list(ctx, a.c, names)
	if err != nil {
		return nil, fmt.Errorf("kafka: list topics: %w", err)
	}
	var out []Difference
	for _, t := range declared {
		is := have[t.Name]
		switch err := kerr.ErrorForCode(is.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			out = append(out, Difference{Topic: t.Name, Text: isMissing, Fatal: true})
			continue
		case err != nil:
			return nil, fmt.Errorf("kafka: topic %s: %w", t.Name, err)
		}
		if n := len(is.Partitions); n != int(t.Partitions) {
			out = append(out, Difference{Topic: t.Name,
				Text: fmt.Sprintf("has %d partitions, %d are declared: a count never changes, more are a new topic", n,
					t.Partitions), Fatal: true})
		}
		for _, p := range is.Partitions {
			if n := len(p.Replicas); n != int(replication) {
				out = append(out, Difference{Topic: t.Name,
					Text: fmt.Sprintf("partition %d has %d replicas, not %d", p.Partition, n, replication)})
				break
			}
		}
		copies := minReplicas(is, replication)
		values, err := a.configs(ctx, t.Name)
		if err != nil {
			return nil, err
		}
		want := t.configs(copies)
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if values[key] != want[key] {
				out = append(out, Difference{
					Topic: t.Name, Text: fmt.Sprintf("%s is %q, %q is declared", key, values[key], want[key]),
					Fatal: key == "cleanup.policy", config: true,
				})
			}
		}
	}
	return out, nil
}

// minReplicas is how many replicas each partition of a topic has at least, at most as many
// as there should be. No more can be in sync: a topic that demands more takes nothing.
func minReplicas(t kmsg.MetadataResponseTopic, replication int16) int16 {
	n := int(replication)
	for _, p := range t.Partitions {
		n = min(n, len(p.Replicas))
	}
	return int16(n)
}

// configs reads the configuration of an existing topic. Some brokers may not know a new
// topic yet.
func (a *Admin) configs(ctx context.Context, topic string) (map[string]string, error) {
	for tries := 1; ; tries++ {
		all, err := a.ad.DescribeTopicConfigs(ctx, topic)
		var one kadm.ResourceConfig
		if err == nil {
			if one, err = all.On(topic, nil); err == nil {
				err = one.Err
			}
		}
		switch {
		case err == nil:
			values := map[string]string{}
			for _, c := range one.Configs {
				values[c.Key] = c.MaybeValue()
			}
			return values, nil
		case !errors.Is(err, kerr.UnknownTopicOrPartition) || tries == metadataTries:
			return nil, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
		}
		if err := wait.For(ctx, metadataPoll); err != nil {
			return nil, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
		}
	}
}

// How often, and how many times, a cluster is asked whether its brokers know a new topic.
const (
	metadataPoll  = 200 * time.Millisecond
	metadataTries = 50
)

// list asks the cluster itself: the client's metadata may be older than a topic.
func list(ctx context.Context, who kmsg.Requestor, names []string) (map[string]kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	res, err := req.RequestWith(ctx, who)
	if err != nil {
		return nil, err
	}
	out := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range res.Topics {
		if t.Topic != nil {
			out[*t.Topic] = t
		}
	}
	return out, nil
}

// ErrRemains says that topics have other partitions or replicas than declared.
var ErrRemains = errors.New("kafka: not as declared, and not changed by apply")

// Apply creates missing topics, and sets configurations that differ; it returns what it
// did. It never changes partitions or replicas of an existing topic: ErrRemains says where
// they differ.
func (a *Admin) Apply(ctx context.Context, replication int16) (did []string, err error) {
	differences, err := a.Verify(ctx, replication)
	if err != nil {
		return nil, err
	}
	missing, wrong := map[string]bool{}, map[string]bool{}
	var remains []string
	for _, d := range differences {
		switch {
		case d.config:
			wrong[d.Topic] = true
		case d.missing():
			missing[d.Topic] = true
		default:
			remains = append(remains, d.String())
		}
	}
	copies := map[string]int16{}
	if len(wrong) > 0 {
		have, err := list(ctx, a.c, slices.Collect(maps.Keys(wrong)))
		if err != nil {
			return nil, fmt.Errorf("kafka: list topics: %w", err)
		}
		for name, t := range have {
			copies[name] = minReplicas(t, replication)
		}
	}
	for _, t := range a.topics {
		if !wrong[t.Name] && !missing[t.Name] {
			continue
		}
		what, err := a.createOrConfigure(ctx, t, cmp.Or(copies[t.Name], replication), replication)
		if err != nil {
			return did, err
		}
		did = append(did, t.Name+": "+what)
	}
	if err := a.awaitTopics(ctx); err != nil {
		return did, err
	}
	if len(remains) > 0 {
		return did, fmt.Errorf("%w: %s", ErrRemains, strings.Join(remains, "; "))
	}
	return did, nil
}

// createOrConfigure creates a topic, or configures an existing one with so many copies; it
// returns what it did.
func (a *Admin) createOrConfigure(ctx context.Context, t Topic, copies, replication int16) (string, error) {
	configs := map[string]*string{}
	var alter []kadm.AlterConfig
	for _, key := range slices.Sorted(maps.Keys(t.Configs)) {
		value := t.configs(copies)[key]
		configs[key] = &value
		alter = append(alter, kadm.AlterConfig{Op: kadm.SetConfig, Name: key, Value: &value})
	}
	res, err := a.ad.CreateTopic(ctx, t.Partitions, replication, configs, t.Name)
	if err == nil {
		err = res.Err
	}
	if err == nil {
		return fmt.Sprintf("created with %d partitions and %d replicas", t.Partitions, replication), nil
	}
	if !errors.Is(err, kerr.TopicAlreadyExists) {
		return "", fmt.Errorf("kafka: create topic %s: %w", t.Name, err)
	}
	altered, err := a.ad.AlterTopicConfigs(ctx, alter, t.Name)
	if err == nil {
		_, err = altered.On(t.Name, func(r *kadm.AlterConfigsResponse) error { return r.Err })
	}
	if err != nil {
		return "", fmt.Errorf("kafka: configure topic %s: %w", t.Name, err)
	}
	return "configured as declared", nil
}

// Create creates a topic with as many replicas as another one, and waits until all brokers
// know it. An existing topic must have the same partitions.
func (a *Admin) Create(ctx context.Context, t Topic, like string) error {
	have, err := list(ctx, a.c, []string{t.Name, like})
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	if err := kerr.ErrorForCode(have[like].ErrorCode); err != nil {
		return fmt.Errorf("kafka: topic %s: %w", like, err)
	}
	replicas := minReplicas(have[like], Replication)
	if is := have[t.Name]; is.ErrorCode == 0 && len(is.Partitions) != int(t.Partitions) {
		return fmt.Errorf("kafka: topic %s is there already, with %d partitions", t.Name, len(is.Partitions))
	}
	if _, err := a.createOrConfigure(ctx, t, replicas, replicas); err != nil {
		return err
	}
	a.topics = []Topic{t}
	return a.awaitTopics(ctx)
}

// awaitTopics waits until all brokers that answer know all topics: a cluster confirms a
// creation before they do.
func (a *Admin) awaitTopics(ctx context.Context) error {
	var names []string
	for _, t := range a.topics {
		names = append(names, t.Name)
	}
	for {
		brokers, err := a.ad.ListBrokers(ctx)
		if err != nil {
			return fmt.Errorf("kafka: list brokers: %w", err)
		}
		missing, answers := 0, 0
		for _, id := range brokers.NodeIDs() {
			have, err := list(ctx, a.c.Broker(int(id)), names)
			if err != nil {
				continue // it is down, and gets the topics when it is back
			}
			answers++
			for _, name := range names {
				if t, ok := have[name]; !ok || t.ErrorCode != 0 {
					missing++
				}
			}
		}
		if missing == 0 && answers > 0 {
			return nil
		}
		if err := wait.For(ctx, metadataPoll); err != nil {
			return fmt.Errorf("kafka: not all brokers know of the topics yet: %w", err)
		}
	}
}

// Check refuses a cluster whose topics have a fatal difference.
func (a *Admin) Check(ctx context.Context) error {
	differences, err := a.Verify(ctx, Replication)
	if err != nil {
		return err
	}
	var wrong []error
	for _, d := range differences {
		if d.Fatal {
			wrong = append(wrong, errors.New(d.String()))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	text := make([]string, len(wrong))
	for i, e := range wrong {
		text[i] = e.Error()
	}
	return fmt.Errorf("kafka: topics are not as declared (`workers kafka apply` makes what is missing): %s",
		strings.Join(text, "; "))
}
