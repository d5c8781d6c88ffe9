package dynamo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// Transact implements store.Store.
func (s *Store) Transact(ctx context.Context, p store.Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	r := &run{s: s, writes: p.Writes, now: s.opts.Clock().Unix(), fresh: make([]bool, len(p.Writes))}
	if len(p.Writes) == 1 && !s.opts.noShort {
		err = r.single(ctx)
	} else {
		err = r.transaction(ctx, p.Token)
	}
	var failed *store.ConditionError
	switch {
	case err == nil:
		s.counters.plans.Add(1)
	case errors.As(err, &failed):
		s.counters.failed.Add(1)
	}
	return err
}

// run is a plan that is being executed.
type run struct {
	s      *Store
	writes []store.Write
	now    int64  // unix seconds; one for all attempts, which must be equal
	fresh  []bool // updates that found an item that has expired
}

// failedItem is an item whose condition failed, as DynamoDB returned it.
type failedItem struct {
	index int
	item  attributes
}

// errRebuild says that the plan must be sent again with other requests.
var errRebuild = errors.New("dynamo: an update met an item that has expired")

// resolveFailures evaluates the conditions that failed in DynamoDB, in plan order: those of
// the plan by the contract's evaluator, and those that this engine added.
func (r *run) resolveFailures(list []failedItem) error {
	var failures []store.Failure
	var refused error
	rebuild := false
	for _, o := range list {
		w := &r.writes[o.index]
		row, err := r.s.schemas[w.Key.Table].decode(o.item)
		if err != nil {
			return err
		}
		expired := store.Expired(row.Item, r.now)
		current := row.Item
		if expired {
			current = nil
		}
		if !store.Evaluate(w.Cond, current) {
			failures = append(failures, store.Failure{Index: o.index, Name: w.Name, Current: current})
			continue
		}
		if w.Op == store.OpUpdate && expired != r.fresh[o.index] {
			r.fresh[o.index], rebuild = expired, true
			continue
		}
		if _, err := w.Next(current); err != nil {
			refused = err
		} else if refused == nil {
			refused = fmt.Errorf("%w: DynamoDB refuses a condition on %s that holds", store.ErrUnavailable, w.Key)
		}
	}
	switch {
	case len(failures) > 0:
		return &store.ConditionError{Failures: failures}
	case refused != nil:
		return refused
	case rebuild:
		return errRebuild
	}
	return fmt.Errorf("%w: a transaction was cancelled without a reason", store.ErrUnavailable)
}

// transaction runs the plan as one.
func (r *run) transaction(ctx context.Context, token string) error {
	for n := 0; ; n++ {
		if token == "" {
			token = rand.Text()
		}
		items := make([]types.TransactWriteItem, len(r.writes))
		for i := range r.writes {
			w := &r.writes[i]
			f, err := r.s.schemas[w.Key.Table].request(w, r.now, r.fresh[i])
			if err != nil {
				return err
			}
			items[i] = f.action()
		}
		in := &dynamodb.TransactWriteItemsInput{TransactItems: items, ClientRequestToken: &token,
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal}
		v, open, err := r.s.wire.Do(ctx, true, func(ctx context.Context) error {
			out, err := r.s.wire.DB.TransactWriteItems(ctx, in)
			if err == nil {
				r.s.counters.writes(out.ConsumedCapacity...)
			}
			return err
		})
		if err == nil {
			return nil
		}
		var cancelled *types.TransactionCanceledException
		var reused *types.IdempotentParameterMismatchException
		switch {
		case v == wire.Final && errors.As(err, &cancelled):
			err = r.cancelled(cancelled)
			if !errors.Is(err, errRebuild) {
				return err
			}
		case v == wire.Final && !open && errors.As(err, &reused):
			// The caller repeats a plan at another time. The plan's conditions decide
			// whether it was committed, as on an engine without tokens.
		default:
			return wire.FinalError(ctx, v, open, err)
		}
		token = ""
		if !r.s.wire.Backoff(ctx, n) {
			return wire.FinalError(ctx, wire.Conflicting, false, err)
		}
	}
}

func (f *request) action() types.TransactWriteItem {
	switch f.op {
	case store.OpPut:
		return types.TransactWriteItem{Put: &types.Put{
			TableName: &f.table, Item: f.item, ConditionExpression: f.cond,
			ExpressionAttributeNames: f.names, ExpressionAttributeValues: f.values,
			ReturnValuesOnConditionCheckFailure: f.failed(),
		}}
	case store.OpUpdate:
		return types.TransactWriteItem{Update: &types.Update{
			TableName: &f.table, Key: f.key, UpdateExpression: f.update, ConditionExpression: f.cond,
			ExpressionAttributeNames: f.names, ExpressionAttributeValues: f.values,
			ReturnValuesOnConditionCheckFailure: f.failed(),
		}}
	case store.OpDelete:
		return types.TransactWriteItem{Delete: &types.Delete{
			TableName: &f.table, Key: f.key, ConditionExpression: f.cond,
			ExpressionAttributeNames: f.names, ExpressionAttributeValues: f.values,
			ReturnValuesOnConditionCheckFailure: f.failed(),
		}}
	}
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &f.table, Key: f.key, ConditionExpression: f.cond,
		ExpressionAttributeNames: f.names, ExpressionAttributeValues: f.values,
		ReturnValuesOnConditionCheckFailure: f.failed(),
	}}
}

func (r *run) cancelled(err *types.TransactionCanceledException) error {
	var list []failedItem
	var other error
	for i, reason := range err.CancellationReasons {
		switch c := wire.Code(reason); {
		case c == "ConditionalCheckFailed" && i < len(r.writes):
			list = append(list, failedItem{i, reason.Item})
		case c == "ValidationError", c == "ItemCollectionSizeLimitExceeded":
			text := c
			if reason.Message != nil {
				text = *reason.Message
			}
			other = fmt.Errorf("%w: %s", store.ErrInvalid, text)
		case c != "None" && c != "":
			other = fmt.Errorf("%w: a transaction was cancelled: %s", store.ErrUnavailable, c)
		}
	}
	if len(list) == 0 && other != nil {
		return other
	}
	resolved := r.resolveFailures(list)
	var failed *store.ConditionError
	if other != nil && !errors.As(resolved, &failed) {
		return other
	}
	return resolved
}

// single runs a plan of one write without a transaction.
func (r *run) single(ctx context.Context) error {
	w := &r.writes[0]
	if w.Op == store.OpCheck { // a consistent read costs less, and sees the same
		it, err := r.s.get(ctx, w.Key, store.Strong)
		if err == nil && !store.Evaluate(w.Cond, it) {
			err = &store.ConditionError{Failures: []store.Failure{{Name: w.Name, Current: it}}}
		}
		return err
	}
	for n := 0; ; n++ {
		f, err := r.s.schemas[w.Key.Table].request(w, r.now, r.fresh[0])
		if err != nil {
			return err
		}
		v, open, err := r.s.wire.Do(ctx, false, func(ctx context.Context) error { return r.s.send(ctx, &f) })
		if err == nil {
			return nil
		}
		var failed *types.ConditionalCheckFailedException
		if v != wire.Final || !errors.As(err, &failed) {
			return wire.FinalError(ctx, v, open, err)
		}
		if err = r.resolveFailures([]failedItem{{0, failed.Item}}); !errors.Is(err, errRebuild) {
			return err
		}
		if !r.s.wire.Backoff(ctx, n) {
			return wire.FinalError(ctx, wire.Conflicting, false, err)
		}
	}
}

// send sends a write that is not part of a transaction.
func (s *Store) send(ctx context.Context, f *request) error {
	var used *types.ConsumedCapacity
	const total = types.ReturnConsumedCapacityTotal
	switch f.op {
	case store.OpPut:
		out, err := s.wire.DB.PutItem(ctx, &dynamodb.PutItemInput{
			TableName: &f.table, Item: f.item, ConditionExpression: f.cond, ExpressionAttributeNames: f.names,
			ExpressionAttributeValues: f.values, ReturnValuesOnConditionCheckFailure: f.failed(), ReturnConsumedCapacity: total,
		})
		if err != nil {
			return err
		}
		used = out.ConsumedCapacity
	case store.OpUpdate:
		out, err := s.wire.DB.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &f.table, Key: f.key, UpdateExpression: f.update, ConditionExpression: f.cond,
			ExpressionAttributeNames:  f.names,
			ExpressionAttributeValues: f.values, ReturnValuesOnConditionCheckFailure: f.failed(), ReturnConsumedCapacity: total,
		})
		if err != nil {
			return err
		}
		used = out.ConsumedCapacity
	default:
		out, err := s.wire.DB.DeleteItem(ctx, &dynamodb.DeleteItemInput{
			TableName: &f.table, Key: f.key, ConditionExpression: f.cond, ExpressionAttributeNames: f.names,
			ExpressionAttributeValues: f.values, ReturnValuesOnConditionCheckFailure: f.failed(), ReturnConsumedCapacity: total,
		})
		if err != nil {
			return err
		}
		used = out.ConsumedCapacity
	}
	s.counters.write(used)
	return nil
}

// BatchWrite implements store.Store. Its writes have no condition, so that they can be
// repeated regardless of their outcome.
func (s *Store) BatchWrite(ctx context.Context, writes []store.Write) error {
	if err := store.ValidateBatch(writes); err != nil {
		return err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	request := map[string][]types.WriteRequest{}
	for i := range writes {
		w := &writes[i]
		sc := s.schemas[w.Key.Table]
		one := types.WriteRequest{}
		if w.Op == store.OpPut {
			one.PutRequest = &types.PutRequest{Item: sc.encode(w.Key, w.Item)}
		} else {
			one.DeleteRequest = &types.DeleteRequest{Key: sc.key(w.Key)}
		}
		request[sc.name] = append(request[sc.name], one)
	}
	left := len(writes)
	for n := 0; ; n++ {
		var out *dynamodb.BatchWriteItemOutput
		v, open, err := s.wire.Do(ctx, true, func(ctx context.Context) (err error) {
			out, err = s.wire.DB.BatchWriteItem(ctx,
				&dynamodb.BatchWriteItemInput{RequestItems: request, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal})
			return err
		})
		if err != nil {
			return wire.FinalError(ctx, v, open, err)
		}
		s.counters.writes(out.ConsumedCapacity...)
		request = out.UnprocessedItems
		before := left
		left = 0
		for _, list := range request {
			left += len(list)
		}
		if left == 0 {
			return nil
		}
		s.wire.CountUnprocessed(left)
		if left < before {
			n = 0
		}
		if !s.wire.Backoff(ctx, n) {
			return wire.UnprocessedError(ctx)
		}
	}
}
