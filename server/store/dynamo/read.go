package dynamo

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// live reads an item that DynamoDB answered with, nil for none and for one that has
// expired.
func (s *Store) live(sh *shape, m attributes) (store.Item, error) {
	row, err := sh.decode(m)
	if err != nil || store.Expired(row.Item, s.opts.Clock().Unix()) {
		return nil, err
	}
	return row.Item, nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return s.get(ctx, key, c)
}

func (s *Store) get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	sh := s.shapes[key.Table]
	var out *dynamodb.GetItemOutput
	err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
		out, err = s.wire.DB.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &sh.name, Key: sh.key(key), ConsistentRead: aws.Bool(bool(c)), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.counters.read(out.ConsumedCapacity)
	return s.live(sh, out.Item)
}

// BatchGet implements store.Store.
func (s *Store) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	if err := store.ValidateKeys(keys); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	place := make(map[store.Key]int, len(keys))
	request := map[string]types.KeysAndAttributes{}
	tables := map[string]*shape{}
	for i, k := range keys {
		sh := s.shapes[k.Table]
		place[k], tables[sh.name] = i, sh
		of := request[sh.name]
		of.ConsistentRead = aws.Bool(bool(c))
		of.Keys = append(of.Keys, sh.key(k))
		request[sh.name] = of
	}
	items := make([]store.Item, len(keys))
	for n := 0; len(request) > 0; n++ {
		var out *dynamodb.BatchGetItemOutput
		err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
			out, err = s.wire.DB.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: request, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal})
			return err
		})
		if err != nil {
			return nil, err
		}
		s.counters.reads(out.ConsumedCapacity...)
		got := 0
		for name, list := range out.Responses {
			sh := tables[name]
			for _, m := range list {
				row, err := sh.decode(m)
				if err != nil {
					return nil, err
				}
				if i, ok := place[row.Key]; ok && !store.Expired(row.Item, s.opts.Clock().Unix()) {
					items[i] = row.Item
				}
				got++
			}
		}
		request = out.UnprocessedKeys
		if len(request) == 0 {
			break
		}
		if got > 0 {
			n = 0 // the answer was too large, or there is some capacity
		}
		for _, of := range request {
			s.wire.Left(len(of.Keys))
		}
		if !s.wire.Pause(ctx, n) {
			return nil, wire.Unprocessed(ctx)
		}
	}
	return items, nil
}

// pages reads pages of DynamoDB's until one of the contract's is full. fetch answers
// with the rows after a cursor and the key to go on after, none at the end; limit 0 is none.
func (s *Store) pages(sh *shape, limit int, cursor string, position func(store.Key) string, fetch func(after string, limit int) (rows []attributes, last attributes, err error)) (store.Page, error) {
	p := store.NewPager(limit, s.opts.Clock())
	for size := 0; ; {
		want := 0
		if limit > 0 {
			want = limit - len(p.Page.Rows)
		}
		list, last, err := fetch(cursor, want)
		if err != nil {
			return store.Page{}, err
		}
		for _, m := range list {
			row, err := sh.decode(m)
			if err != nil {
				return store.Page{}, err
			}
			if !p.Add(row, position(row.Key)) {
				return p.Page, nil
			}
			size += len(row.Key.PK) + len(row.Key.SK) + row.Item.Size()
		}
		if len(last) == 0 {
			return p.Page, nil
		}
		end, err := sh.decode(last)
		if err != nil {
			return store.Page{}, err
		}
		cursor = position(end.Key)
		if limit <= 0 || len(p.Page.Rows) >= limit || size >= store.MaxPageBytes {
			p.Page.Cursor = cursor
			return p.Page, nil
		}
	}
}

// Query implements store.Store.
func (s *Store) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Page{}, err
	}
	defer end()
	// DynamoDB wants a cursor between the bounds, and bounds in order.
	near, far := q.From, q.To
	before := func(a, b string) bool { return a < b }
	if q.Descending {
		near, far = q.To, q.From
		before = func(a, b string) bool { return a > b }
	}
	if q.Cursor != "" && near != "" && before(q.Cursor, near) {
		q.Cursor = ""
	}
	if (near != "" && far != "" && before(far, near)) || (q.Cursor != "" && far != "" && !before(q.Cursor, far)) {
		return store.Page{}, nil
	}
	sh := s.shapes[q.Table]
	e := &expression{sh: sh}
	str := func(s string) string { return e.value(&types.AttributeValueMemberS{Value: s}) }
	cond := e.column(sh.pk) + "=" + str(q.PK)
	switch {
	case q.From != "" && q.To != "":
		cond += " AND " + e.column(sh.sk) + " BETWEEN " + str(q.From) + " AND " + str(q.To)
	case q.From != "":
		cond += " AND " + e.column(sh.sk) + ">=" + str(q.From)
	case q.To != "":
		cond += " AND " + e.column(sh.sk) + "<=" + str(q.To)
	}
	position := func(k store.Key) string { return k.SK }
	return s.pages(sh, q.Limit, q.Cursor, position, func(after string, limit int) ([]attributes, attributes, error) {
		in := &dynamodb.QueryInput{
			TableName: &sh.name, KeyConditionExpression: &cond, ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
			ScanIndexForward: aws.Bool(!q.Descending), ConsistentRead: aws.Bool(bool(q.Consistency)), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
			Limit: pageLimit(limit),
		}
		if after != "" {
			in.ExclusiveStartKey = sh.key(store.Key{PK: q.PK, SK: after})
		}
		var out *dynamodb.QueryOutput
		err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
			out, err = s.wire.DB.Query(ctx, in)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		s.counters.read(out.ConsumedCapacity)
		return out.Items, out.LastEvaluatedKey, nil
	})
}

func pageLimit(n int) *int32 {
	if n <= 0 {
		return nil
	}
	return aws.Int32(int32(min(n, 1<<20))) // more than any page holds
}

// Scan implements store.Store. Its reads are consistent; segments are DynamoDB's own.
func (s *Store) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Page{}, err
	}
	defer end()
	sh := s.shapes[q.Table]
	return s.pages(sh, q.Limit, q.Cursor, store.ScanCursor, func(after string, limit int) ([]attributes, attributes, error) {
		in := &dynamodb.ScanInput{
			TableName: &sh.name, Segment: aws.Int32(int32(q.Segment)), TotalSegments: aws.Int32(int32(q.Segments)),
			ConsistentRead: aws.Bool(true), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal, Limit: pageLimit(limit),
		}
		if after != "" {
			from := q
			from.Cursor = after
			k, err := from.After()
			if err != nil {
				return nil, nil, err
			}
			in.ExclusiveStartKey = sh.key(k)
		}
		var out *dynamodb.ScanOutput
		err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
			out, err = s.wire.DB.Scan(ctx, in)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		s.counters.read(out.ConsumedCapacity)
		return out.Items, out.LastEvaluatedKey, nil
	})
}
