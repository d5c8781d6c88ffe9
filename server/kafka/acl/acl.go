// Package acl declares Parley's permissions on Kafka: the ACLs of a cluster that denies
// what is not allowed. Each role has only what its job needs, so that a leaked password
// cannot forge events.
//
// It owns the table of roles and rights, its forms for people (commands, Terraform), its
// application and verification, and the check at the start that a process has what its jobs
// need. It does not own the authentication of a user (package kafka) or the topics
// themselves. Concurrency: everything is safe for concurrent use.
package acl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
)

// Role is what a user of Kafka's does for Parley. A user may have several.
type Role string

// The roles. Those of jobs carry their names.
const (
	Relay     Role = "relay"     // the only writer of events
	Fanout    Role = "fanout"    // reads events, writes dead letters
	Projector Role = "projector" // reads events and dead letters, writes dead letters
	Ops       Role = "ops"       // serves operators: reads everything, describes groups
	Operator  Role = "operator"  // topics apply and verify, topics acl verify
	Topics    Role = "topics"    // keeps the messages of topics, reads events: servers
)

// Names that the rights are about and other packages choose.
const (
	RelayTransactions = "parley-relay-"                  // beginning of the transactional ids of relays
	TopicMessages     = kafka.OwnPrefix + "t."           // beginning of the topics that hold topics' messages
	TopicState        = kafka.OwnPrefix + "topics.state" // what is kept beside them
	TopicTransactions = "parley-topics-"                 // beginning of the transactional ids of slots
	TopicGroups       = kafka.OwnPrefix                  // beginning of the groups whose offsets show how far groups are
	clusterName       = "kafka-cluster"                  // Kafka's own name of its one cluster
)

// Right is what a role may do with a resource.
type Right struct {
	Role       Role
	Type       kmsg.ACLResourceType
	Name       string
	Prefixed   bool // Name is the beginning of names
	Operations []kmsg.ACLOperation
}

// Rights returns the table. Read and Write, and those that change, let describe, too.
// Idempotent writing needs no right of its own from Kafka 3.0 on.
func Rights() []Right {
	const topic = kmsg.ACLResourceTypeTopic
	const (
		read, write   = kmsg.ACLOperationRead, kmsg.ACLOperationWrite
		describe      = kmsg.ACLOperationDescribe
		configs       = kmsg.ACLOperationDescribeConfigs
		create, alter = kmsg.ACLOperationCreate, kmsg.ACLOperationAlterConfigs
		remove        = kmsg.ACLOperationDelete
	)
	var list []Right
	for _, t := range kafka.Topics() {
		// Publishers and consumers check the declared topics at their start.
		relay := []kmsg.ACLOperation{write, configs}
		fanout, projector := readerOf(t, kafka.FanoutGroup), readerOf(t, kafka.ProjectorGroup)
		if t.Kind == kafka.DeadLetterKind { // consumers write them
			relay = []kmsg.ACLOperation{describe, configs}
		}
		list = append(list,
			Right{Relay, topic, t.Name, false, relay},
			Right{Fanout, topic, t.Name, false, fanout},
			Right{Projector, topic, t.Name, false, projector},
			Right{Ops, topic, t.Name, false, []kmsg.ACLOperation{read, configs}},
			Right{Operator, topic, t.Name, false, []kmsg.ACLOperation{create, describe, configs, alter}},
		)
		if t.Kind == kafka.Chats {
			// Its later versions, NAME.v2 and so on, which a migration makes by the role ops.
			list = append(list,
				// Topics of chats are read where they are.
				Right{Topics, topic, t.Name, false, []kmsg.ACLOperation{read}},
				Right{Topics, topic, t.Name + ".v", true, []kmsg.ACLOperation{read}},
				Right{Relay, topic, t.Name + ".v", true, relay},
				Right{Fanout, topic, t.Name + ".v", true, fanout},
				Right{Projector, topic, t.Name + ".v", true, projector},
				Right{Ops, topic, t.Name + ".v", true, []kmsg.ACLOperation{read, create, configs, alter}},
				Right{Operator, topic, t.Name + ".v", true, []kmsg.ACLOperation{create, describe, configs, alter}},
			)
		}
	}
	list = append(list,
		Right{Relay, kmsg.ACLResourceTypeTransactionalId, RelayTransactions, true, []kmsg.ACLOperation{write}},
		Right{Fanout, kmsg.ACLResourceTypeGroup, kafka.FanoutGroup, false, []kmsg.ACLOperation{read}},
		Right{Projector, kmsg.ACLResourceTypeGroup, kafka.ProjectorGroup, false, []kmsg.ACLOperation{read}},
		Right{Ops, kmsg.ACLResourceTypeGroup, kafka.FanoutGroup, false, []kmsg.ACLOperation{describe}},
		Right{Ops, kmsg.ACLResourceTypeGroup, kafka.ProjectorGroup, false, []kmsg.ACLOperation{describe}},
		Right{Operator, kmsg.ACLResourceTypeGroup, kafka.FanoutGroup, false, []kmsg.ACLOperation{describe}},
		Right{Operator, kmsg.ACLResourceTypeGroup, kafka.ProjectorGroup, false, []kmsg.ACLOperation{describe}},
		// Servers make, trim and remove these topics.
		Right{Topics, topic, TopicMessages, true, []kmsg.ACLOperation{read, write, create, remove, configs, alter}},
		Right{Topics, topic, TopicState, false, []kmsg.ACLOperation{read, write, create, configs}},
		Right{Operator, topic, TopicMessages, true, []kmsg.ACLOperation{describe, configs}},
		Right{Operator, topic, TopicState, false, []kmsg.ACLOperation{describe, configs}},
		Right{Topics, kmsg.ACLResourceTypeTransactionalId, TopicTransactions, true, []kmsg.ACLOperation{write}},
		Right{Topics, kmsg.ACLResourceTypeGroup, TopicGroups, true, []kmsg.ACLOperation{read}},
		// How many bytes a topic takes, which is to have a bound.
		Right{Topics, kmsg.ACLResourceTypeCluster, clusterName, false, []kmsg.ACLOperation{describe}},
		// To read ACLs and the brokers' own settings; to write ACLs is the administrator's.
		Right{Operator, kmsg.ACLResourceTypeCluster, clusterName, false, []kmsg.ACLOperation{describe, configs}},
	)
	slices.SortStableFunc(list, func(a, b Right) int { return slices.Index(roles, a.Role) - slices.Index(roles, b.Role) })
	return list
}

// readerOf is what a role with a consumer group may do with a topic. Every consumer writes the
// dead letters of its own records.
func readerOf(t kafka.Topic, group string) (list []kmsg.ACLOperation) {
	if slices.Contains(t.Readers, group) {
		list = append(list, kmsg.ACLOperationRead)
	}
	if t.Kind == kafka.DeadLetterKind {
		list = append(list, kmsg.ACLOperationWrite)
	}
	if len(list) == 0 {
		list = append(list, kmsg.ACLOperationDescribe)
	}
	return append(list, kmsg.ACLOperationDescribeConfigs)
}

var roles = []Role{Relay, Fanout, Projector, Ops, Operator, Topics}

// Of returns the roles of a process with these jobs; not every job has one.
func Of(jobs ...string) []Role {
	return slices.DeleteFunc(slices.Clone(roles), func(r Role) bool { return !slices.Contains(jobs, string(r)) })
}

// Principals are the principals of the roles, in Kafka's words: User:name.
type Principals map[Role]string

const maxPrincipal = 512 // bytes

// ParsePrincipals reads ROLE=PRINCIPAL with semicolons between them. A role that is not
// named has User:parley-ROLE.
func ParsePrincipals(text string) (Principals, error) {
	p := Principals{}
	for _, r := range roles {
		p[r] = "User:parley-" + string(r)
	}
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		role, name, _ := strings.Cut(part, "=")
		if !slices.Contains(roles, Role(role)) {
			return nil, fmt.Errorf("kafka-principals: %.40q is no role: relay, fanout, projector, ops, operator and topics are", role)
		}
		if kind, who, _ := strings.Cut(name, ":"); kind == "" || who == "" || len(name) > maxPrincipal ||
			strings.ContainsAny(name, "\"'\\\n$`") {
			return nil, errors.New("kafka-principals: a principal must be User:NAME, without quotation marks")
		}
		p[Role(role)] = name
	}
	return p, nil
}

// Kafka's names of types and operations, as its tools and Terraform write them.
func typeName(t kmsg.ACLResourceType) string {
	switch t {
	case kmsg.ACLResourceTypeTransactionalId:
		return "TransactionalID"
	case kmsg.ACLResourceTypeTopic:
		return "Topic"
	case kmsg.ACLResourceTypeGroup:
		return "Group"
	default:
		return "Cluster"
	}
}

var operationNames = map[kmsg.ACLOperation]string{
	kmsg.ACLOperationAll: "All", kmsg.ACLOperationRead: "Read", kmsg.ACLOperationWrite: "Write",
	kmsg.ACLOperationCreate: "Create",
	kmsg.ACLOperationDelete: "Delete", kmsg.ACLOperationAlter: "Alter", kmsg.ACLOperationDescribe: "Describe",
	kmsg.ACLOperationDescribeConfigs: "DescribeConfigs", kmsg.ACLOperationAlterConfigs: "AlterConfigs",
}

func operationName(o kmsg.ACLOperation) string {
	if n, ok := operationNames[o]; ok {
		return n
	}
	return o.String()
}

// resource is how a line names what a right is about.
func (r Right) resource() string {
	switch r.Type {
	case kmsg.ACLResourceTypeTopic:
		if r.Prefixed {
			return "topics " + r.Name + "*"
		}
		return "topic " + r.Name
	case kmsg.ACLResourceTypeGroup:
		if r.Prefixed {
			return "groups " + r.Name + "*"
		}
		return "group " + r.Name
	case kmsg.ACLResourceTypeTransactionalId:
		return "transactional id " + r.Name + "*"
	default:
		return "the cluster"
	}
}

// Commands returns the table as commands of Kafka's own tool.
func Commands(p Principals) []string {
	var list []string
	for _, r := range Rights() {
		var b strings.Builder
		fmt.Fprintf(&b, "kafka-acls.sh --bootstrap-server \"$BROKERS\" --command-config \"$ADMIN\" --add --allow-principal '%s'", p[r.Role])
		for _, o := range r.Operations {
			b.WriteString(" --operation " + operationName(o))
		}
		switch r.Type {
		case kmsg.ACLResourceTypeTopic:
			b.WriteString(" --topic " + r.Name)
		case kmsg.ACLResourceTypeGroup:
			b.WriteString(" --group " + r.Name)
		case kmsg.ACLResourceTypeTransactionalId:
			b.WriteString(" --transactional-id " + r.Name)
		default:
			b.WriteString(" --cluster")
		}
		if r.Prefixed {
			b.WriteString(" --resource-pattern-type prefixed")
		}
		list = append(list, b.String())
	}
	return list
}

// Terraform is the table as Terraform's configuration for the provider Mongey/kafka.
func Terraform(p Principals) string {
	var b strings.Builder
	b.WriteString(`
# Who may do what, on a cluster that has an authorizer.

variable "parley_kafka_acls" {
  type        = bool
  default     = true
  description = "Make Parley's ACLs; false on a cluster without an authorizer."
}

variable "parley_kafka_principals" {
  type = map(string)
  default = {
`)
	for _, r := range roles {
		fmt.Fprintf(&b, "    %-8s = %q\n", r, p[r])
	}
	b.WriteString("  }\n  description = \"Who has which role.\"\n}\n\nlocals {\n  parley_kafka_rights = [\n")
	for _, r := range Rights() {
		pattern := "Literal"
		if r.Prefixed {
			pattern = "Prefixed"
		}
		for _, o := range r.Operations {
			fmt.Fprintf(&b, "    { role = %q, type = %q, name = %q, pattern = %q, operation = %q },\n", r.Role, typeName(r.Type),
				r.Name, pattern, operationName(o))
		}
	}
	b.WriteString(`  ]
}

resource "kafka_acl" "parley" {
  for_each = var.parley_kafka_acls ? { for r in local.parley_kafka_rights : "${r.role} ${r.operation} ${r.type} ${r.name}" => r } : {}

  acl_principal                = var.parley_kafka_principals[each.value.role]
  acl_host                     = "*"
  acl_operation                = each.value.operation
  acl_permission_type          = "Allow"
  resource_type                = each.value.type
  resource_name                = each.value.name
  resource_pattern_type_filter = each.value.pattern
}
`)
	return b.String()
}
