package port

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/durable"
)

// File is the name of the file with the credentials of readers, in the form that
// librdkafka reads (kcat -F).
const File = "kafka.properties"

// User is who they are, and Mechanism how they show it.
const (
	User      = "reader"
	Mechanism = "SCRAM-SHA-256"
)

// The user of this process, whose password nobody has.
const ours = "parley"

// Credentials say how others read the log.
type Credentials struct{ Address, Password string }

// Properties are the credentials as librdkafka takes them.
func (c Credentials) Properties() string {
	return fmt.Sprintf("bootstrap.servers=%s\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=%s\nsasl.username=%s\nsasl.password=%s\n",
		c.Address, Mechanism, User, c.Password)
}

// JavaProperties are the credentials as Java's clients take them.
func (c Credentials) JavaProperties() string {
	return fmt.Sprintf("bootstrap.servers=%s\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=%s\nsasl.jaas.config=%s required username=\"%s\" password=\"%s\";\n",
		c.Address, Mechanism, "org.apache.kafka.common.security.scram.ScramLoginModule", User, c.Password)
}

// Options are what a client of a reader needs.
func (c Credentials) Options() []kgo.Opt {
	return []kgo.Opt{kgo.SASL(scram.Auth{User: User, Pass: c.Password}.AsSha256Mechanism())}
}

// Load reads the credentials in a data directory.
func Load(dir string) (Credentials, error) {
	f, err := os.Open(filepath.Join(dir, File))
	if err != nil {
		return Credentials{}, err
	}
	defer func() { _ = f.Close() }()
	var c Credentials
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		switch key, value, _ := strings.Cut(lines.Text(), "="); key {
		case "bootstrap.servers":
			c.Address = value
		case "sasl.password":
			c.Password = value
		}
	}
	if err := lines.Err(); err != nil {
		return c, err
	}
	if len(c.Password) < 16 {
		return c, fmt.Errorf("%s has no password", filepath.Join(dir, File))
	}
	return c, nil
}

// Password returns the readers' password of a data directory, and makes one where there
// is none.
func Password(dir string) (string, error) {
	c, err := Load(dir)
	switch {
	case err == nil:
		return c.Password, nil
	case errors.Is(err, fs.ErrPermission):
		return "", err
	}
	return rand.Text(), nil // what was broken is nothing to keep
}

// Save writes the credentials, for their owner only, and makes them durable: a password that is
// lost with the power cannot be told from none, and programs would have to be given another.
func (c Credentials) Save(dir string) error {
	return durable.Replace(filepath.Join(dir, File), []byte(c.Properties()))
}

// rights are what readers may do. The groups are Parley's own.
func rights(groups []string) []kfake.ACL {
	acl := func(r kmsg.ACLResourceType, name string, op kmsg.ACLOperation, allow bool) kfake.ACL {
		return kfake.ACL{Principal: "User:" + User, Resource: r, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral,
			Operation: op, Allow: allow}
	}
	list := []kfake.ACL{
		acl(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationRead, true),
		acl(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationDescribeConfigs, true),
		acl(kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationRead, true),
		acl(kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationDelete, true),
		acl(kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationDescribe, true),
	}
	for _, g := range groups { // they may be looked at
		list = append(list, acl(kmsg.ACLResourceTypeGroup, g, kmsg.ACLOperationRead, false),
			acl(kmsg.ACLResourceTypeGroup, g, kmsg.ACLOperationDelete, false))
	}
	return list
}

// Locks are the broker's options that let readers read, and the user of this process do
// everything; Prepare must have been called. The groups are Parley's own.
func Locks(readers, own string, groups []string) []kfake.Opt {
	return []kfake.Opt{kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser(Mechanism, ours, own),
		kfake.User(Mechanism, User, readers, rights(groups)...)}
}

// Options are what clients of this process need.
func (p *Port) Options(own string) []kgo.Opt {
	return []kgo.Opt{kgo.Dialer(p.Dial), kgo.SASL(scram.Auth{User: ours, Pass: own}.AsSha256Mechanism())}
}

// Prepare makes the broker's own lists in its directory what Locks says: those of the
// last process would count more.
func Prepare(dir string, groups []string) error {
	for _, name := range []string{"sasl.json", "acls.json", "broker_configs.json", "quotas.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prepare the Kafka port: %w", err)
		}
	}
	type entry struct {
		Principal  string `json:"principal"`
		Host       string `json:"host"`
		Type       int8   `json:"resource_type"`
		Name       string `json:"resource_name"`
		Pattern    int8   `json:"pattern"`
		Operation  int8   `json:"operation"`
		Permission int8   `json:"permission"`
	}
	list := struct {
		Version int     `json:"version"`
		ACLs    []entry `json:"acls"`
	}{Version: 1}
	for _, a := range rights(groups) {
		permission := kmsg.ACLPermissionTypeDeny
		if a.Allow {
			permission = kmsg.ACLPermissionTypeAllow
		}
		list.ACLs = append(list.ACLs, entry{a.Principal, "*", int8(a.Resource), a.Name, int8(a.Pattern), int8(a.Operation),
			int8(permission)})
	}
	b, err := json.Marshal(list)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "acls.json"), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("prepare the Kafka port: %w", err)
	}
	return nil
}
