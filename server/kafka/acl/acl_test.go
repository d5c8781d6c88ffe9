package acl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/capacity"
	"github.com/parley-chat/parley/server/kafka/dial"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

var update = flag.Bool("update", false, "write the Terraform file")

func defaults(t *testing.T) Principals {
	t.Helper()
	p, err := ParsePrincipals("")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// K-020: the relay alone may write events, and only consumers write dead letters.
func TestWhoWrites(t *testing.T) {
	may := map[string][]Role{}
	for _, r := range Rights() {
		if r.Type == kmsg.ACLResourceTypeTopic && slices.Contains(r.Operations, kmsg.ACLOperationWrite) {
			may[r.Name] = append(may[r.Name], r.Role)
		}
	}
	for _, topic := range kafka.Topics() {
		want := []Role{Relay}
		if topic.Name == kafka.DeadLetters {
			want = []Role{Fanout, Projector}
		}
		if !slices.Equal(may[topic.Name], want) {
			t.Errorf("%s is written by %v", topic.Name, may[topic.Name])
		}
	}
	commands := strings.Join(Commands(defaults(t)), "\n")
	for _, want := range []string{
		"--allow-principal 'User:parley-relay' --operation Write --operation DescribeConfigs --topic messages.persisted\n",
		"--operation Write --transactional-id parley-relay- --resource-pattern-type prefixed",
		"--operation Read --group fanout-workers", "--cluster",
	} {
		if !strings.Contains(commands, want) {
			t.Errorf("no %q in\n%s", want, commands)
		}
	}
}

// Each consumer may read what its group reads, and no other topic.
func TestWhoReads(t *testing.T) {
	may := map[Role][]string{}
	for _, r := range Rights() {
		if r.Type == kmsg.ACLResourceTypeTopic && !r.Prefixed && slices.Contains(r.Operations, kmsg.ACLOperationRead) {
			may[r.Role] = append(may[r.Role], r.Name)
		}
	}
	for role, want := range map[Role][]string{
		Relay: nil, Fanout: {"messages.persisted", "memberships.changed", "chats.created"},
		Projector: {"messages.persisted", "dead_letters"},
	} {
		if !slices.Equal(may[role], want) {
			t.Errorf("%s reads %v, not %v", role, may[role], want)
		}
	}
}

func TestPrincipals(t *testing.T) {
	p, err := ParsePrincipals(" relay=User:CN=relay,O=Parley ; fanout=User:a;")
	if err != nil || p[Relay] != "User:CN=relay,O=Parley" || p[Fanout] != "User:a" ||
		p[Operator] != "User:parley-operator" {
		t.Errorf("%v %v", p, err)
	}
	for _, text := range []string{"relay", "relay=", "relay=a", "relay=User:", "dance=User:a", "relay=User:a'b",
		"relay=User:$x", "relay=User:" + strings.Repeat("x", maxPrincipal)} {
		if _, err := ParsePrincipals(text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got := Of("reconcile", "projector", "fanout", "relay"); !slices.Equal(got, []Role{Relay, Fanout, Projector}) {
		t.Errorf("%v", got)
	}
}

// One who has several roles has each right once.
func TestOneUserForAll(t *testing.T) {
	p, err := ParsePrincipals("relay=User:p;fanout=User:p;projector=User:p;ops=User:p;operator=User:p;topics=User:p")
	if err != nil {
		t.Fatal(err)
	}
	list := declared(p)
	for i, e := range list {
		if e.principal != "User:p" || slices.Contains(list[:i], e) {
			t.Errorf("%v", e)
		}
	}
	if len(list) >= len(declared(defaults(t))) {
		t.Error("nothing fell together")
	}
}

// The file in the repository is what `workers kafka terraform` prints.
func TestTerraformFile(t *testing.T) {
	file := filepath.Join("..", "..", "deploy", "terraform", "kafka.tf")
	want := capacity.Terraform() + Terraform(defaults(t))
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s is not what is declared; write it with: go test ./server/kafka/acl -update", file)
	}
}

// securedCluster is the secured Kafka as a user gets in.
func securedCluster(t *testing.T, user string) kafka.Cluster {
	t.Helper()
	addr := os.Getenv("PARLEY_TEST_SECURED_KAFKA")
	if addr == "" {
		t.Skip("not run: PARLEY_TEST_SECURED_KAFKA is not set")
	}
	text, err := os.ReadFile(filepath.Join(os.Getenv("PARLEY_TEST_SECURED_DIR"), "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return kafka.Cluster{
		Brokers: []string{addr}, TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		Mechanism: "SCRAM-SHA-512", User: user, Password: os.Getenv("PARLEY_TEST_SECURED_PASSWORD"),
	}
}

// connect gets in as a user of the secured Kafka.
func connect(t *testing.T, user string) *kafka.Client {
	t.Helper()
	a, err := dial.Connect(t.Context(), securedCluster(t, user), 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	// Rights on topics can be asked for once there are topics.
	if user == "admin" {
		if _, err := a.Apply(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	return a.Client()
}

// change makes or removes an ACL, and waits until the broker knows.
func change(t *testing.T, admin *kafka.Client, e entry, there bool) {
	t.Helper()
	if there {
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = e.kind, e.name, e.pattern
		a.Principal, a.Host, a.Operation, a.PermissionType = e.principal, "*", e.operation, kmsg.ACLPermissionTypeAllow
		req := kmsg.NewPtrCreateACLsRequest()
		req.Creations = append(req.Creations, a)
		if _, err := req.RequestWith(context.Background(), admin); err != nil {
			t.Fatal(err)
		}
	} else {
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = e.kind, kmsg.StringPtr(e.name), e.pattern
		f.Principal, f.Operation, f.PermissionType = kmsg.StringPtr(e.principal), e.operation, kmsg.ACLPermissionTypeAllow
		req := kmsg.NewPtrDeleteACLsRequest()
		req.Filters = append(req.Filters, f)
		if _, err := req.RequestWith(context.Background(), admin); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, fmt.Sprintf("%v: %t", e, there), func() bool {
		have, err := list(context.Background(), admin)
		testkit.Must(t, err)
		return have[e] == there
	})
}

// createVersions creates a second version of each topic, as a migration does.
func createVersions(t *testing.T, admin *kafka.Client) {
	t.Helper()
	create, remove := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewPtrDeleteTopicsRequest()
	for _, topic := range kafka.Topics() {
		c := kmsg.NewCreateTopicsRequestTopic()
		c.Topic, c.NumPartitions, c.ReplicationFactor = topic.Name+".v2", 1, 1
		d := kmsg.NewDeleteTopicsRequestTopic()
		d.Topic = kmsg.StringPtr(c.Topic)
		create.Topics, remove.Topics, remove.TopicNames = append(create.Topics, c), append(remove.Topics, d),
			append(remove.TopicNames, c.Topic)
	}
	if _, err := create.RequestWith(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := remove.RequestWith(context.Background(), admin); err != nil {
			t.Error(err)
		}
	})
}

// checkWithout runs the check that asks for a right, unless another right implies it or
// nothing asks: the rights to create and alter are used by commands only.
func checkWithout(t *testing.T, user *kafka.Client, e entry) (err error, asked bool) {
	t.Helper()
	switch {
	case e.operation == kmsg.ACLOperationDescribe, e.operation == kmsg.ACLOperationDescribeConfigs,
		e.kind == kmsg.ACLResourceTypeCluster,
		e.kind == kmsg.ACLResourceTypeTopic && strings.HasPrefix(e.name, TopicGroups): // said when used
		return nil, false
	case e.kind != kmsg.ACLResourceTypeTopic || e.pattern != kmsg.ACLResourcePatternTypePrefixed:
		return Check(t.Context(), user, "parley-worker", roles...), true
	}
	role := map[kmsg.ACLOperation]Role{kmsg.ACLOperationRead: Fanout, kmsg.ACLOperationWrite: Relay}[e.operation]
	if role == "" {
		return nil, false
	}
	return CheckTopics(t.Context(), user, role, []kafka.Topic{{Name: e.name + "2"}}), true
}

// Every single right that is declared is asked for at the start, named where it lacks,
// seen by verify, and made by apply.
func TestEachRight(t *testing.T) {
	admin := connect(t, "admin")
	p, err := ParsePrincipals("relay=User:parley-worker;fanout=User:parley-worker;projector=User:parley-worker;ops=User:parley-worker;" +
		"operator=User:parley-worker;topics=User:parley-worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, e := range declared(p) {
			change(t, admin, e, false)
		}
	})
	user := connect(t, "parley-worker")
	if err := Check(t.Context(), user, "parley-worker", roles...); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("without rights: %v", err)
	}
	if _, err := Apply(t.Context(), user, p); err == nil || !strings.Contains(err.Error(), "ACLs: it needs") {
		t.Fatalf("made by one who may not: %v", err)
	}
	did, err := Apply(t.Context(), admin, p)
	if err != nil || len(did) != len(declared(p)) {
		t.Fatalf("%d made of %d: %v", len(did), len(declared(p)), err)
	}
	for _, e := range declared(p) {
		change(t, admin, e, true) // the broker knows of it
	}
	if err := Check(t.Context(), user, "parley-worker", roles...); err != nil {
		t.Fatal(err)
	}
	createVersions(t, admin)
	for _, e := range declared(p) {
		change(t, admin, e, false)
		missing := "missing: " + e.String()
		lines, err := Verify(t.Context(), admin, p)
		if err != nil || !slices.Contains(lines, missing) {
			t.Errorf("%s: %q, %v", missing, lines, err)
		}
		if err, asked := checkWithout(t, user, e); asked {
			if err == nil || !strings.Contains(err.Error(), operationName(e.operation)) ||
				!strings.Contains(err.Error(), e.name) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", missing, err)
			}
		}
		if did, err := Apply(t.Context(), admin, p); err != nil || len(did) != 1 {
			t.Errorf("%q: %v", did, err)
		}
		change(t, admin, e, true)
	}
	// K-020: whoever else may write is reported, by name, prefix or for all.
	for _, e := range []entry{
		{"User:stranger", kmsg.ACLResourceTypeTopic, kafka.MessagesPersisted, kmsg.ACLResourcePatternTypeLiteral,
			kmsg.ACLOperationWrite},
		{"User:stranger", kmsg.ACLResourceTypeTopic, "mess", kmsg.ACLResourcePatternTypePrefixed, kmsg.ACLOperationAll},
		{"User:*", kmsg.ACLResourceTypeTopic, "*", kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLOperationDelete},
		{"User:parley-worker", kmsg.ACLResourceTypeGroup, "another", kmsg.ACLResourcePatternTypeLiteral,
			kmsg.ACLOperationRead},
	} {
		change(t, admin, e, true)
		lines, err := Verify(t.Context(), admin, p)
		change(t, admin, e, false)
		if err != nil || !slices.Contains(lines, "not declared: "+e.String()) {
			t.Errorf("%v: %q, %v", e, lines, err)
		}
	}
	// Those who only read are the integrators' business.
	reader := entry{"User:stranger", kmsg.ACLResourceTypeTopic, kafka.MessagesPersisted,
		kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLOperationRead}
	change(t, admin, reader, true)
	lines, err := Verify(t.Context(), admin, p)
	change(t, admin, reader, false)
	if err != nil || strings.Contains(fmt.Sprint(lines), "stranger") {
		t.Errorf("a reader: %q, %v", lines, err)
	}
}

// Where nobody is asked, everybody passes, and there is nothing to apply.
func TestNoAuthorizer(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		a, err := dial.Connect(t.Context(), kafka.Cluster{Brokers: strings.Split(b.Addr, ",")}, 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if err := Check(t.Context(), a.Client(), "", roles...); err != nil {
			t.Error(err)
		}
		if b.Cluster != nil {
			return // it keeps ACLs and asks nobody
		}
		if _, err := Apply(t.Context(), a.Client(), defaults(t)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("applied: %v", err)
		}
	})
}

// A relay's permissions are taken away while it publishes, and restored: it resumes by
// itself, without a restart.
func TestPublisherWhosePermissionComesBack(t *testing.T) {
	admin := connect(t, "admin")
	p, err := ParsePrincipals("relay=User:parley-worker;fanout=User:parley-worker;projector=User:parley-worker;ops=User:parley-worker;" +
		"operator=User:parley-worker;topics=User:parley-worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, e := range declared(p) {
			change(t, admin, e, false)
		}
	})
	if _, err := Apply(t.Context(), admin, p); err != nil {
		t.Fatal(err)
	}
	var permissions []entry // to write, under a transactional id or to a topic
	for _, e := range declared(p) {
		change(t, admin, e, true)
		if e.operation == kmsg.ACLOperationWrite &&
			(e.name == RelayTransactions || e.name == kafka.ChatsCreated) {
			permissions = append(permissions, e)
		}
	}
	if len(permissions) < 2 {
		t.Fatalf("permissions to write: %v", permissions)
	}
	cluster := securedCluster(t, "parley-worker")
	publisher, err := kafka.NewPublisher(cluster.Addr(), "parley-relay-0", cluster.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	t.Cleanup(func() { // what is published is no event, and must be nobody's dead letter
		ends, err := kadm.NewClient(admin).ListEndOffsets(context.Background(), kafka.ChatsCreated)
		if err == nil {
			_, err = kadm.NewClient(admin).DeleteRecords(context.Background(), ends.Offsets())
		}
		if err != nil {
			t.Error(err)
		}
	})
	publish := func() error {
		return publisher.Publish(t.Context(),
			[]*kafka.Record{{Topic: kafka.ChatsCreated, Partition: 1, Key: []byte("k"), Value: []byte("v")}})
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	for _, e := range permissions {
		change(t, admin, e, false)
		end := time.Now().Add(30 * time.Second)
		for publish() == nil && time.Now().Before(end) { // brokers hear of it one after the other
		}
		if err := publish(); err == nil || errors.Is(err, kafka.ErrFenced) {
			t.Fatalf("without %v: %v", e, err)
		}
		change(t, admin, e, true)
		testkit.Succeeds(t, fmt.Sprintf("publish when %v is there again", e), publish)
	}
}
