package tables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// Tables are the real ones. It is for operators: no server needs the permissions that
// it uses.
type Tables struct {
	c    *wire.Client
	defs []Definition
}

// Open connects to DynamoDB, whether there are tables or not.
func Open(ctx context.Context, c wire.Config, prefix string) (*Tables, error) {
	if err := ValidPrefix(prefix); err != nil {
		return nil, err
	}
	client, err := wire.Dial(ctx, c)
	if err != nil {
		return nil, err
	}
	return &Tables{c: client, defs: Definitions(prefix)}, nil
}

// Close releases the connections.
func (t *Tables) Close() { t.c.Close() }

// changeTime bounds one change of one table, from the request to its end.
const changeTime = 5 * time.Minute

const (
	firstPoll = 20 * time.Millisecond
	maxPoll   = 2 * time.Second
)

// state is a table as it is.
type state struct {
	table  *types.TableDescription // nil: there is none
	ttl    types.TimeToLiveDescription
	backup types.PointInTimeRecoveryStatus // "" where DynamoDB Local does not know of it
}

// local is the answer of DynamoDB Local to what it does not have.
func local(err error) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == "UnknownOperationException"
}

func (t *Tables) describe(ctx context.Context, d Definition) (st state, err error) {
	ctx, cancel := wire.WithTimeout(ctx) // an unreachable DynamoDB fails now, not after the wait for a table
	defer cancel()
	if err := t.describeTable(ctx, d, &st); err != nil || st.table == nil {
		return st, err
	}
	err = t.c.Read(ctx, func(ctx context.Context) error {
		out, err := t.c.DB.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &d.Name})
		if err == nil && out.TimeToLiveDescription != nil {
			st.ttl = *out.TimeToLiveDescription
		}
		return err
	})
	if err != nil {
		return st, err
	}
	return st, t.describeBackups(ctx, d, &st)
}

func (t *Tables) describeTable(ctx context.Context, d Definition, st *state) error {
	var out *dynamodb.DescribeTableOutput
	v, _, err := t.c.Do(ctx, true, func(ctx context.Context) (err error) {
		out, err = t.c.DB.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &d.Name})
		return err
	})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return wire.FinalError(ctx, v, false, err)
	}
	st.table = out.Table
	return nil
}

func (t *Tables) describeBackups(ctx context.Context, d Definition, st *state) error {
	err := t.c.Read(ctx, func(ctx context.Context) error {
		out, err := t.c.DB.DescribeContinuousBackups(ctx, &dynamodb.DescribeContinuousBackupsInput{TableName: &d.Name})
		if err == nil {
			st.backup = types.PointInTimeRecoveryStatusDisabled
			if b := out.ContinuousBackupsDescription; b != nil && b.PointInTimeRecoveryDescription != nil {
				st.backup = b.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus
			}
		}
		return err
	})
	if local(err) {
		return nil
	}
	return err
}

// Unprotected says, one line for each of the two features, which tables lack point-in-time recovery
// or protection from deletion. It says nothing of DynamoDB Local, which has no backups.
func (t *Tables) Unprotected(ctx context.Context) (lines []string, err error) {
	var lost, deleted []string
	for _, d := range t.defs {
		var st state
		call, cancel := wire.WithTimeout(ctx)
		err := t.describeTable(call, d, &st)
		if err == nil {
			err = t.describeBackups(call, d, &st)
		}
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		if st.backup == "" {
			return nil, nil
		}
		if !st.recoverable() {
			lost = append(lost, d.Name)
		}
		if !st.protected() {
			deleted = append(deleted, d.Name)
		}
	}
	for what, names := range map[string][]string{"point-in-time recovery is off": lost,
		"protection from deletion is off": deleted} {
		if len(names) > 0 {
			lines = append(lines, what+": "+strings.Join(names, ", "))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

func (st state) ttlOn() bool {
	return st.ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabled ||
		st.ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabling
}

func (st state) onDemand() bool {
	return st.table != nil && st.table.BillingModeSummary != nil &&
		st.table.BillingModeSummary.BillingMode == types.BillingModePayPerRequest
}

func (st state) protected() bool {
	return st.table != nil && aws.ToBool(st.table.DeletionProtectionEnabled)
}

func (st state) recoverable() bool { return st.backup != types.PointInTimeRecoveryStatusDisabled }

// differences says, one line each, how a table differs from its definition. fatal are
// those that only a new table could resolve.
func (st state) differences(d Definition) (lines []string, fatal bool) {
	line := func(format string, args ...any) {
		lines = append(lines, d.Name+": "+fmt.Sprintf(format, args...))
	}
	if st.table == nil {
		line("missing")
		return lines, false
	}
	schema := d.schema()
	if !slices.EqualFunc(schema, st.table.KeySchema, func(a, b types.KeySchemaElement) bool {
		return aws.ToString(a.AttributeName) == aws.ToString(b.AttributeName) && a.KeyType == b.KeyType
	}) {
		line("key is %s, should be %s", describeKey(st.table.KeySchema), describeKey(schema))
		fatal = true
	}
	for _, a := range st.table.AttributeDefinitions {
		name := aws.ToString(a.AttributeName)
		if (name == d.PartitionKey || name == d.SortKey) && a.AttributeType != types.ScalarAttributeTypeS {
			line("attribute %s of the key has type %s, should be S", name, a.AttributeType)
			fatal = true
		}
	}
	if st.table.TableStatus != types.TableStatusActive && st.table.TableStatus != types.TableStatusUpdating {
		line("status is %s, should be ACTIVE", st.table.TableStatus)
	}
	if !st.onDemand() {
		line("billing is not on demand (PAY_PER_REQUEST)")
	}
	if !st.protected() {
		line("is not protected from deletion")
	}
	for _, i := range st.table.GlobalSecondaryIndexes {
		line("index %s should not exist: a send would pay for it", aws.ToString(i.IndexName))
	}
	for _, i := range st.table.LocalSecondaryIndexes {
		line("index %s should not exist: a send would pay for it", aws.ToString(i.IndexName))
		fatal = true
	}
	switch on := st.ttlOn(); {
	case d.TTL && !on:
		line("time to live is off, should be on %s", store.ExpiresAtField)
	case !d.TTL && on:
		line("time to live is on %s, should be off", aws.ToString(st.ttl.AttributeName))
	case on && aws.ToString(st.ttl.AttributeName) != store.ExpiresAtField:
		line("time to live is on %s, should be on %s", aws.ToString(st.ttl.AttributeName), store.ExpiresAtField)
	}
	if !st.recoverable() {
		line("point-in-time recovery is off")
	}
	return lines, fatal
}

func describeKey(schema []types.KeySchemaElement) string {
	text := ""
	for i, k := range schema {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %s", aws.ToString(k.AttributeName), k.KeyType)
	}
	return text
}

func (d Definition) schema() []types.KeySchemaElement {
	list := []types.KeySchemaElement{{AttributeName: aws.String(d.PartitionKey), KeyType: types.KeyTypeHash}}
	if d.SortKey != "" {
		list = append(list, types.KeySchemaElement{AttributeName: aws.String(d.SortKey), KeyType: types.KeyTypeRange})
	}
	return list
}

func (d Definition) attributes() []types.AttributeDefinition {
	list := []types.AttributeDefinition{{AttributeName: aws.String(d.PartitionKey),
		AttributeType: types.ScalarAttributeTypeS}}
	if d.SortKey != "" {
		list = append(list, types.AttributeDefinition{AttributeName: aws.String(d.SortKey),
			AttributeType: types.ScalarAttributeTypeS})
	}
	return list
}

// Verify returns how the tables differ from their definitions, one line each; none
// means that all is as it should be. It changes nothing. Against DynamoDB Local,
// which has no backups, those are not checked.
func (t *Tables) Verify(ctx context.Context) ([]string, error) {
	var all []string
	for _, d := range t.defs {
		st, err := t.describe(ctx, d)
		if err != nil {
			return all, fmt.Errorf("%s: %w", d.Name, err)
		}
		lines, _ := st.differences(d)
		all = append(all, lines...)
	}
	return all, nil
}

// Apply creates and changes tables to match their definitions and returns what it did, one
// line each; repeated, it does nothing. It leaves unknown tables and indexes unchanged. It
// stops at the first table with another key, which cannot be changed.
func (t *Tables) Apply(ctx context.Context) ([]string, error) {
	var did []string
	for _, d := range t.defs {
		lines, err := t.apply(ctx, d)
		did = append(did, lines...)
		if err != nil {
			return did, fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	return did, nil
}

func (t *Tables) apply(ctx context.Context, d Definition) (did []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	st, err := t.describe(ctx, d)
	if err != nil {
		return nil, err
	}
	if lines, fatal := st.differences(d); fatal {
		return nil, fmt.Errorf("cannot be changed: %s", lines[0])
	}
	// change runs a change. Another process may make the same change, so only the resulting
	// state of the table counts.
	change := func(what string, is func(state) bool, run func(ctx context.Context) error) error {
		class, ambiguous, changed := t.c.Do(ctx, true, run)
		var busy *types.ResourceInUseException
		expected := changed == nil || errors.As(changed, &busy) // descriptions may be late
		if st, err = t.awaitState(ctx, d, func(st state) bool { return !expected || is(st) }); err != nil {
			return errors.Join(changed, err)
		}
		if !is(st) {
			return wire.FinalError(ctx, class, ambiguous, changed)
		}
		if changed == nil {
			did = append(did, d.Name+": "+what)
		}
		return nil
	}
	if st.table == nil {
		err = change("created", func(st state) bool { return st.table != nil }, func(ctx context.Context) error {
			_, err := t.c.DB.CreateTable(ctx, &dynamodb.CreateTableInput{
				TableName: &d.Name, KeySchema: d.schema(), AttributeDefinitions: d.attributes(),
				BillingMode: types.BillingModePayPerRequest, DeletionProtectionEnabled: aws.Bool(true),
			})
			return err
		})
	} else {
		st, err = t.awaitState(ctx, d, func(state) bool { return true })
	}
	if err != nil {
		return did, err
	}
	for _, s := range t.settings(d) {
		if s.is(st) {
			continue
		}
		if err := change(s.what, s.is, s.set); err != nil {
			return did, err
		}
	}
	return did, nil
}

// setting is a property of an existing table that apply sets.
type setting struct {
	what string
	is   func(state) bool
	set  func(context.Context) error
}

func (t *Tables) settings(d Definition) []setting {
	list := []setting{
		{"billed on demand", state.onDemand, func(ctx context.Context) error {
			_, err := t.c.DB.UpdateTable(ctx,
				&dynamodb.UpdateTableInput{TableName: &d.Name, BillingMode: types.BillingModePayPerRequest})
			return err
		}},
		{"protected from deletion", state.protected, func(ctx context.Context) error {
			_, err := t.c.DB.UpdateTable(ctx,
				&dynamodb.UpdateTableInput{TableName: &d.Name, DeletionProtectionEnabled: aws.Bool(true)})
			return err
		}},
	}
	if d.TTL {
		list = append(list, setting{"time to live on " + store.ExpiresAtField, state.ttlOn, func(ctx context.Context) error {
			_, err := t.c.DB.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
				TableName: &d.Name, TimeToLiveSpecification: &types.TimeToLiveSpecification{
					AttributeName: aws.String(store.ExpiresAtField), Enabled: aws.Bool(true)},
			})
			return err
		}})
	}
	return append(list, setting{"point-in-time recovery on", state.recoverable, func(ctx context.Context) error {
		_, err := t.c.DB.UpdateContinuousBackups(ctx, &dynamodb.UpdateContinuousBackupsInput{
			TableName: &d.Name, PointInTimeRecoverySpecification: &types.PointInTimeRecoverySpecification{
				PointInTimeRecoveryEnabled: aws.Bool(true)},
		})
		return err
	}})
}

// awaitState waits until a table, if it exists, is active and ready reports true.
func (t *Tables) awaitState(ctx context.Context, d Definition, ready func(state) bool) (state, error) {
	for pause := firstPoll; ; pause = min(2*pause, maxPoll) {
		st, err := t.describe(ctx, d)
		if err != nil {
			return st, err
		}
		if ready(st) && (st.table == nil || st.table.TableStatus == types.TableStatusActive) {
			return st, nil
		}
		if err := wait.For(ctx, pause); err != nil {
			return st, err
		}
	}
}
