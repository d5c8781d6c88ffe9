// Package tables is the tables of DynamoDB as code: their definitions, and what makes,
// checks and describes real ones.
//
// There is one list, [Definitions]; the engine, apply, verify, Terraform and tests
// follow it. The package knows no row. Apply and Verify may run anywhere, at any time,
// in several processes at once.
package tables

import (
	"fmt"
	"regexp"

	"github.com/parley-chat/parley/server/store"
)

// Definition is a table as it should be: on-demand billing, no index, point-in-time
// recovery, protected from deletion. Parts of keys are strings.
type Definition struct {
	Table        store.Table
	Name         string // with the prefix
	PartitionKey string // attribute
	SortKey      string // attribute; "" for none
	TTL          bool   // items expire at store.ExpiresAtField
}

// keys are the attributes of the keys where one kind of row has the table for itself.
// Others have pk and sk. A table's key can never change.
var keys = map[store.Table][2]string{
	store.Users:           {"user_id"},
	store.Chats:           {"chat_id"},
	store.ChatCounters:    {"chat_id"},
	store.ChatMemberships: {"chat_id", "user_id"},
	store.DeliveryState:   {"user_id", "chat_id"},
	store.Messages:        {"chat_id", "sequence"},
	store.Events:          {"chat_id", "version"},
	store.Outbox:          {"shard", "chat_first_version"},
	store.IdempotencyKeys: {"scope"},
	store.DirectChatIndex: {"pair_key"},
	store.PendingMembers:  {"chat_id"},
	store.Schemas:         {"subject", "version"},
}

// Definitions is the one list of the tables, in the order of store.Tables: code,
// Terraform and tests follow it.
func Definitions(prefix string) []Definition {
	var list []Definition
	for _, d := range store.Tables() {
		k, ok := keys[d.Name]
		if !ok {
			k = [2]string{"pk", "sk"}
		}
		if !d.SortKey {
			k[1] = ""
		}
		list = append(list, Definition{Table: d.Name, Name: prefix + string(d.Name), PartitionKey: k[0], SortKey: k[1],
			TTL: d.TTL})
	}
	return list
}

// DefaultPrefix begins the names of the tables where nothing else is said.
const DefaultPrefix = "parley_"

var prefixes = regexp.MustCompile(`^[a-zA-Z0-9_.-]{0,64}$`)

// ValidPrefix checks a prefix of names. Errors fit into one line.
func ValidPrefix(prefix string) error {
	if !prefixes.MatchString(prefix) {
		return fmt.Errorf("dynamo: prefix %.70q must be at most 64 letters, digits, dots, dashes and underscores", prefix)
	}
	return nil
}
