package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func lines(list []Difference) string {
	var out []string
	for _, d := range list {
		out = append(out, d.String())
	}
	return strings.Join(out, "\n")
}

// Topics that have fewer copies than asked for are reported, and not said to be as
// declared: apply does not change that. What it does set fits the copies that there are,
// or nothing could be written.
func TestApplyWithOtherReplication(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	a, err := NewAdmin(Cluster{Brokers: cluster.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx := t.Context()
	if did, err := a.Apply(ctx, 1); err != nil || len(did) != len(Topics()) {
		t.Fatalf("%q %v", did, err)
	}
	hour := "3600000"
	if _, err := a.ad.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &hour}},
		ChatsCreated); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		did, err := a.Apply(ctx, 3)
		if !errors.Is(err, ErrRemains) || !strings.Contains(err.Error(), "chats.created: partition ") ||
			!strings.Contains(err.Error(), "has 1 replicas, not 3") || len(did) > 1 {
			t.Errorf("%q, %v", did, err)
		}
		values, err := a.configs(ctx, ChatsCreated)
		if err != nil || values["min.insync.replicas"] != "1" || values["retention.ms"] == hour {
			t.Errorf("%v, %v", values, err)
		}
	}
	if list, err := a.Verify(ctx, 3); err != nil || len(list) != len(Topics()) {
		t.Errorf("%s, %v", lines(list), err)
	}
	if did, err := a.Apply(ctx, 1); err != nil || len(did) != 0 {
		t.Errorf("%q, %v", did, err)
	}
}

// K-006, K-017, K-018, K-019: topics come from the declared table and nothing else, and a
// cluster that differs is reported.
func TestTopicsAsCode(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	a, err := NewAdmin(Cluster{Brokers: cluster.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx := t.Context()
	verify := func() []Difference {
		t.Helper()
		list, err := a.Verify(ctx, Replication)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := verify(); len(list) != len(Topics()) || !list[0].Fatal ||
		!strings.Contains(lines(list), "messages.persisted: is missing") {
		t.Fatalf("of an empty cluster: %s", lines(list))
	}
	if err := a.Check(ctx); err == nil || !strings.Contains(err.Error(), "dead_letters: is missing") {
		t.Fatalf("start on an empty cluster: %v", err)
	}
	did, err := a.Apply(ctx, Replication)
	if err != nil || len(did) != len(Topics()) {
		t.Fatalf("%q %v", did, err)
	}
	if list := verify(); len(list) > 0 {
		t.Fatalf("after apply: %s", lines(list))
	}
	if did, err := a.Apply(ctx, Replication); err != nil || len(did) > 0 {
		t.Fatalf("applied twice: %q %v", did, err)
	}
	if err := a.Check(ctx); err != nil {
		t.Fatal(err)
	}

	value := "compact"
	hour := "3600000"
	_, err = a.ad.AlterTopicConfigs(ctx,
		[]kadm.AlterConfig{{Name: "cleanup.policy", Value: &value}, {Name: "retention.ms", Value: &hour}}, ChatsCreated)
	if err != nil {
		t.Fatal(err)
	}
	list := verify()
	fatal := slices.IndexFunc(list, func(d Difference) bool { return d.Fatal })
	if len(list) != 2 || !strings.Contains(list[fatal].Text, "cleanup.policy") {
		t.Fatalf("of changed configurations: %s", lines(list))
	}
	if err := a.Check(ctx); err == nil || strings.Contains(err.Error(), "retention") {
		t.Fatalf("start with another cleanup policy: %v", err)
	}
	if did, err := a.Apply(ctx, Replication); err != nil || len(did) != 1 {
		t.Fatalf("%q %v", did, err)
	}
	if list := verify(); len(list) > 0 {
		t.Fatalf("after a repair: %s", lines(list))
	}

	if _, err := a.ad.CreatePartitions(ctx, 1, MembershipsChanged); err != nil {
		t.Fatal(err)
	}
	if err := a.Check(ctx); err == nil || !strings.Contains(err.Error(), "17 partitions, 16 are declared") {
		t.Fatalf("start with another count of partitions: %v", err)
	}
}

// The same on a real cluster, whose word on configurations is the one that counts.
func TestTopicsOnKafka(t *testing.T) {
	addr := os.Getenv("PARLEY_TEST_KAFKA")
	if addr == "" {
		t.Skip("not run: PARLEY_TEST_KAFKA is not set")
	}
	brokers := strings.Split(addr, ",")
	a, err := NewAdmin(Cluster{Brokers: brokers})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	n := int16(len(brokers))
	if _, err := a.Apply(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	list, err := a.Verify(t.Context(), n)
	if err != nil || len(list) > 0 {
		t.Fatalf("%s %v", lines(list), err)
	}
	if err := a.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestClusterOptions(t *testing.T) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	for name, tt := range map[string]struct {
		c    Cluster
		says string
	}{
		"nobody":  {Cluster{}, "no brokers"},
		"no port": {Cluster{Brokers: []string{"h"}}, "host:port"},
		"plain without TLS": {Cluster{Brokers: []string{"h:1"}, Mechanism: "PLAIN", User: "u", Password: "hunter2"},
			"needs TLS"},
		"unknown": {Cluster{Brokers: []string{"h:1"}, Mechanism: "GSSAPI", User: "u", Password: "hunter2"},
			"SCRAM-SHA-512"},
		"no password":  {Cluster{Brokers: []string{"h:1"}, Mechanism: "SCRAM-SHA-256", User: "u"}, "password"},
		"no mechanism": {Cluster{Brokers: []string{"h:1"}, User: "u"}, "mechanism"},
		"good": {Cluster{Brokers: []string{"h:1", "i:2"}, TLS: secure, Mechanism: "PLAIN", User: "u",
			Password: "hunter2"}, ""},
	} {
		err := tt.c.Validate()
		if (err == nil) != (tt.says == "") || err != nil &&
			(!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
}

// A broker that asks for SCRAM lets those in who know the password.
func TestSCRAM(t *testing.T) {
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(),
			kfake.Superuser(mechanism, "parley", "secret"))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		c := Cluster{Brokers: cluster.ListenAddrs(), Mechanism: mechanism, User: "parley", Password: "secret"}
		for password, want := range map[string]bool{"secret": true, "guess": false} {
			c.Password, c.PasswordNow = password, nil
			if password == "guess" { // what a file says now goes before what it said at the start
				c.Password, c.PasswordNow = "secret", func() string { return password }
			}
			p, err := NewProducer(c.Addr(), append(c.Options(), kgo.DialTimeout(retryLimit), kgo.RetryTimeout(retryLimit))...)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*retryLimit)
			if err := p.Ping(ctx); (err == nil) != want {
				t.Errorf("%s with %q: %v", mechanism, password, err)
			}
			cancel()
			p.Close()
		}
	}
}

const retryLimit = commitTimeout / 5
