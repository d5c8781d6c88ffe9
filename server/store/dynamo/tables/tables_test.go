package tables

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

var update = flag.Bool("update", false, "write the Terraform file")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// backups answers what DynamoDB Local does not have, point-in-time recovery, and
// passes on everything else.
type backups struct {
	next aws.HTTPClient
	mu   sync.Mutex
	on   map[string]bool
	used map[string]int // requests by operation
}

func (b *backups) Do(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used[operation]++
	if !strings.HasSuffix(operation, "ContinuousBackups") {
		return b.next.Do(r)
	}
	var in struct{ TableName string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	if operation == "UpdateContinuousBackups" {
		b.on[in.TableName] = true
	}
	status := "DISABLED"
	if b.on[in.TableName] {
		status = "ENABLED"
	}
	body := fmt.Appendf(nil, `{"ContinuousBackupsDescription":{"ContinuousBackupsStatus":"ENABLED","PointInTimeRecoveryDescription":{"PointInTimeRecoveryStatus":%q}}}`, status)
	h := http.Header{"X-Amz-Crc32": {fmt.Sprint(crc32.ChecksumIEEE(body))}}
	return &http.Response{StatusCode: 200, Header: h, Body: io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body))}, nil
}

func config(t *testing.T) wire.Config {
	t.Helper()
	e := os.Getenv("PARLEY_TEST_DYNAMODB")
	if e == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	return wire.Config{Endpoint: e}
}

func open(t *testing.T, c wire.Config, prefix string) *Tables {
	t.Helper()
	tb, err := Open(t.Context(), c, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.Close)
	return tb
}

func unique(t *testing.T) string {
	return fmt.Sprintf("%s_%d_%d_", strings.ReplaceAll(t.Name(), "/", "_"), os.Getpid(), time.Now().UnixNano())
}

func verify(t *testing.T, tb *Tables) []string {
	t.Helper()
	lines, err := tb.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestApplyAndVerify(t *testing.T) {
	c := config(t)
	b := &backups{on: map[string]bool{}, used: map[string]int{}}
	c.Transport = func(next aws.HTTPClient) aws.HTTPClient {
		b.next = next
		return b
	}
	prefix := unique(t)
	tb := open(t, c, prefix)
	if lines := verify(t, tb); len(lines) != len(store.Tables()) || lines[0] != prefix+"users: missing" {
		t.Fatalf("before: %q", lines)
	}
	did, err := tb.Apply(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"users: created", "leases: time to live on expires_at",
		"users: point-in-time recovery on"} {
		if !slices.Contains(did, prefix+want) {
			t.Errorf("%q is not in %q", want, did)
		}
	}
	if lines := verify(t, tb); len(lines) > 0 {
		t.Fatalf("after: %q", lines)
	}
	if lines, err := tb.Unprotected(t.Context()); err != nil || len(lines) > 0 {
		t.Errorf("unprotected: %q, %v", lines, err)
	}
	b.mu.Lock()
	b.on[prefix+"users"], b.on[prefix+"events"] = false, false
	b.mu.Unlock()
	want := []string{"point-in-time recovery is off: " + prefix + "users, " + prefix + "events"}
	if lines, err := tb.Unprotected(t.Context()); err != nil || !slices.Equal(lines, want) {
		t.Errorf("unprotected: %q, %v", lines, err)
	}
	b.mu.Lock()
	b.on[prefix+"users"], b.on[prefix+"events"] = true, true
	b.mu.Unlock()
	again, err := tb.Apply(t.Context())
	if err != nil || len(again) > 0 {
		t.Fatalf("again: %q, %v", again, err)
	}
	// An operator may do what this does and nothing else (S-44); UpdateTable repairs older tables.
	used := []string{"dynamodb:UpdateTable"}
	for operation := range b.used {
		used = append(used, "dynamodb:"+operation)
	}
	slices.Sort(used)
	if want := Actions(Operator); !slices.Equal(used, want) {
		t.Errorf("an operator uses %v, may %v", used, want)
	}
	if b.used["CreateTable"] != len(store.Tables()) || b.used["DeleteTable"] != 0 {
		t.Fatalf("used %v", b.used)
	}
}

// Several processes may apply at once.
func TestApplyAtOnce(t *testing.T) {
	c, prefix := config(t), unique(t)
	var wg sync.WaitGroup
	for range 3 {
		tb := open(t, c, prefix)
		wg.Go(func() {
			if _, err := tb.Apply(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if lines := verify(t, open(t, c, prefix)); len(lines) > 0 {
		t.Fatal(lines)
	}
}

// Each difference has its line; what can be repaired is, what cannot stops.
func TestDifferences(t *testing.T) {
	c := config(t)
	str := func(name string) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: types.ScalarAttributeTypeS}
	}
	hash := func(name string) types.KeySchemaElement {
		return types.KeySchemaElement{AttributeName: aws.String(name), KeyType: types.KeyTypeHash}
	}
	for name, of := range map[string]struct {
		in     dynamodb.CreateTableInput
		before []string
		fatal  bool
	}{
		"another key": {
			dynamodb.CreateTableInput{
				TableName: aws.String("users"), KeySchema: []types.KeySchemaElement{hash("id")},
				AttributeDefinitions: []types.AttributeDefinition{str("id")},
				BillingMode:          types.BillingModePayPerRequest, DeletionProtectionEnabled: aws.Bool(true),
			},
			[]string{"users: key is id HASH, should be user_id HASH"}, true,
		},
		"another type": {
			dynamodb.CreateTableInput{
				TableName: aws.String("users"), KeySchema: []types.KeySchemaElement{hash("user_id")},
				AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("user_id"),
					AttributeType: types.ScalarAttributeTypeN}},
				BillingMode: types.BillingModePayPerRequest, DeletionProtectionEnabled: aws.Bool(true),
			},
			[]string{"users: attribute user_id of the key has type N, should be S"}, true,
		},
		"all that can be repaired": {
			dynamodb.CreateTableInput{
				TableName: aws.String("leases"), KeySchema: []types.KeySchemaElement{hash("pk")},
				AttributeDefinitions: []types.AttributeDefinition{str("pk")},
				BillingMode:          types.BillingModeProvisioned,
				ProvisionedThroughput: &types.ProvisionedThroughput{ReadCapacityUnits: aws.Int64(5),
					WriteCapacityUnits: aws.Int64(5)},
			},
			[]string{"leases: billing is not on demand (PAY_PER_REQUEST)", "leases: is not protected from deletion",
				"leases: time to live is off, should be on expires_at"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := unique(t)
			prefix = prefix[max(0, len(prefix)-60):]
			tb := open(t, c, prefix)
			short := *of.in.TableName
			of.in.TableName = aws.String(prefix + short)
			if _, err := tb.c.DB.CreateTable(t.Context(), &of.in); err != nil {
				t.Fatal(err)
			}
			var own []string
			for _, l := range verify(t, tb) {
				if l = strings.TrimPrefix(l, prefix); strings.HasPrefix(l, short) {
					own = append(own, l)
				}
			}
			if !slices.Equal(own, of.before) {
				t.Fatalf("got %q, want %q", own, of.before)
			}
			_, err := tb.Apply(t.Context())
			if (err != nil) != of.fatal ||
				(of.fatal && (!strings.Contains(err.Error(), "cannot be changed") || strings.Contains(err.Error(), "\n"))) {
				t.Fatal(err)
			}
			if lines := verify(t, tb); !of.fatal && len(lines) > 0 {
				t.Fatalf("after: %q", lines)
			}
		})
	}
}

// Indexes and a wrong expiry are reported; they come from descriptions alone.
func TestDescribedDifferences(t *testing.T) {
	d := Definitions("p_")[0]
	good := func() state {
		return state{
			table: &types.TableDescription{
				TableStatus: types.TableStatusActive, KeySchema: d.schema(), AttributeDefinitions: d.attributes(),
				DeletionProtectionEnabled: aws.Bool(true),
				BillingModeSummary:        &types.BillingModeSummary{BillingMode: types.BillingModePayPerRequest},
			},
			backup: types.PointInTimeRecoveryStatusEnabled,
		}
	}
	if lines, fatal := good().differences(d); len(lines) > 0 || fatal {
		t.Fatal(lines)
	}
	for want, change := range map[string]func(*state){
		"p_users: index by_name should not exist: a send would pay for it": func(s *state) {
			s.table.GlobalSecondaryIndexes = []types.GlobalSecondaryIndexDescription{{IndexName: aws.String("by_name")}}
		},
		"p_users: index by_time should not exist: a send would pay for it": func(s *state) {
			s.table.LocalSecondaryIndexes = []types.LocalSecondaryIndexDescription{{IndexName: aws.String("by_time")}}
		},
		"p_users: time to live is on at, should be off": func(s *state) {
			s.ttl = types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusEnabled, AttributeName: aws.String("at")}
		},
		"p_users: status is DELETING, should be ACTIVE": func(s *state) { s.table.TableStatus = types.TableStatusDeleting },
		"p_users: point-in-time recovery is off": func(s *state) {
			s.backup = types.PointInTimeRecoveryStatusDisabled
		},
	} {
		s := good()
		change(&s)
		if lines, _ := s.differences(d); len(lines) != 1 || lines[0] != want {
			t.Errorf("got %q, want %q", lines, want)
		}
	}
}

// The keys of released tables: they can never change.
func TestKeysStay(t *testing.T) {
	var lines []string
	for _, d := range Definitions("") {
		if keys[d.Table][0] != "" {
			lines = append(lines, strings.TrimSpace(fmt.Sprint(d.Name, " ", d.PartitionKey, " ", d.SortKey)))
		}
	}
	want := []string{
		// L-196
		"users user_id", "chats chat_id", "chat_counters chat_id", "chat_memberships chat_id user_id",
		"delivery_state user_id chat_id",
		"messages chat_id sequence", "events chat_id version", "outbox shard chat_first_version", "idempotency_keys scope",
		"direct_chat_index pair_key", "pending_members chat_id", "schemas subject version", // L-007
	}
	if !slices.Equal(lines, want) {
		t.Fatalf("got %q", lines)
	}
	for i, d := range store.Tables() {
		if got := Definitions("p_")[i]; got.Table != d.Name || got.Name != "p_"+string(d.Name) ||
			(got.SortKey != "") != d.SortKey || got.TTL != d.TTL || got.PartitionKey == "" {
			t.Errorf("%+v for %+v", got, d)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for _, p := range []string{"", "parley_", "a-b.c_", strings.Repeat("x", 64)} {
		if err := ValidPrefix(p); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []string{"a b", "ä", "a\n", strings.Repeat("x", 65)} {
		if _, err := Open(t.Context(), wire.Config{Endpoint: "http://127.0.0.1:1"}, p); err == nil ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// The file that operators copy is what the code says.
func TestTerraformFile(t *testing.T) {
	file := filepath.Join("..", "..", "..", "deploy", "terraform", "dynamodb.tf")
	want := Terraform(DefaultPrefix)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Fatalf("%s is not what the definitions say (%v): go test ./server/store/dynamo/tables -update", file, err)
	}
}
