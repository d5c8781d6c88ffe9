package dynamo

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// live reads an item that DynamoDB answered with, nil for none and for one that has
// expired.
func (s *Store) live(sc *schema, m attributes) (store.Item, error) {
	row, err := sc.decode(m)
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
	sc := s.schemas[key.Table]
	var out *dynamodb.GetItemOutput
	err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
		out, err = s.wire.DB.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: &sc.name, Key: sc.key(key), ConsistentRead: aws.Bool(bool(c)),
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.counters.read(out.ConsumedCapacity)
	return s.live(sc, out.Item)
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
	index := make(map[store.Key]int, len(keys))
	request := map[string]types.KeysAndAttributes{}
	tables := map[string]*schema{}
	for i, k := range keys {
		sc := s.schemas[k.Table]
		index[k], tables[sc.name] = i, sc
		of := request[sc.name]
		of.ConsistentRead = aws.Bool(bool(c))
		of.Keys = append(of.Keys, sc.key(k))
		request[sc.name] = of
	}
	items := make([]store.Item, len(keys))
	for n := 0; len(request) > 0; n++ {
		var out *dynamodb.BatchGetItemOutput
		err := s.wire.Read(ctx, func(ctx context.Context) (err error) {
			out, err = s.wire.DB.BatchGetItem(ctx,
				&dynamodb.BatchGetItemInput{RequestItems: request, ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal})
			return err
		})
		if err != nil {
			return nil, err
		}
		s.counters.reads(out.ConsumedCapacity...)
		got := 0
		for name, list := range out.Responses {
			sc := tables[name]
			for _, m := range list {
				row, err := sc.decode(m)
				if err != nil {
					return nil, err
				}
				if i, ok := index[row.Key]; ok && !store.Expired(row.Item, s.opts.Clock().Unix()) {
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
			s.wire.CountUnprocessed(len(of.Keys))
		}
		if !s.wire.Backoff(ctx, n) {
			return nil, wire.UnprocessedError(ctx)
		}
	}
	return items, nil
}

// pages reads pages of DynamoDB's until one of the contract's is full. fetch returns
// the rows after a cursor and the key to continue after, none at the end; limit 0 is none.
func (s *Store) pages(
	sc *schema, limit int, cursor string, position func(store.Key) string,
	fetch func(after string, limit int) (rows []attributes, last attributes, err error),
) (store.Page, error) {
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
			row, err := sc.decode(m)
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
		end, err := sc.decode(last)
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
	sc := s.schemas[q.Table]
	e := &expression{sc: sc}
	str := func(s string) string { return e.value(&types.AttributeValueMemberS{Value: s}) }
	cond := e.column(sc.pk) + "=" + str(q.PK)
	switch {
	case q.From != "" && q.To != "":
		cond += " AND " + e.column(sc.sk) + " BETWEEN " + str(q.From) + " AND " + str(q.To)
	case q.From != "":
		cond += " AND " + e.column(sc.sk) + ">=" + str(q.From)
	case q.To != "":
		cond += " AND " + e.column(sc.sk) + "<=" + str(q.To)
	}
	position := func(k store.Key) string { return k.SK }
	return s.pages(sc, q.Limit, q.Cursor, position, func(after string, limit int) ([]attributes, attributes, error) {
		in := &dynamodb.QueryInput{
			TableName: &sc.name, KeyConditionExpression: &cond, ExpressionAttributeNames: e.names,
			ExpressionAttributeValues: e.values,
			ScanIndexForward:          aws.Bool(!q.Descending), ConsistentRead: aws.Bool(bool(q.Consistency)),
			ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal,
			Limit:                  pageLimit(limit),
		}
		if after != "" {
			in.ExclusiveStartKey = sc.key(store.Key{PK: q.PK, SK: after})
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

// Scan implements store.Store. Its reads are consistent; segments are DynamoDB's own. The mark of the
// table is not among the rows.
func (s *Store) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Page{}, err
	}
	defer end()
	sc := s.schemas[q.Table]
	return s.pages(sc, q.Limit, q.Cursor, store.ScanCursor,
		func(after string, limit int) ([]attributes, attributes, error) {
			in := &dynamodb.ScanInput{
				TableName: &sc.name, Segment: aws.Int32(int32(q.Segment)), TotalSegments: aws.Int32(int32(q.Segments)),
				ConsistentRead: aws.Bool(true), ReturnConsumedCapacity: types.ReturnConsumedCapacityTotal, Limit: pageLimit(limit),
			}
			if after != "" {
				from := q
				from.Cursor = after
				k, err := from.After()
				if err != nil {
					return nil, nil, err
				}
				in.ExclusiveStartKey = sc.key(k)
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
			rows := slices.DeleteFunc(out.Items, func(m attributes) bool { return isMark(m, sc) })
			return rows, out.LastEvaluatedKey, nil
		})
}
