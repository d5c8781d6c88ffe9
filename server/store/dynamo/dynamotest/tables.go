package dynamotest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// pool keeps the tables of tests that have ended.
//
//nolint:gochecknoglobals // tests of a process share tables
var pool struct {
	sync.Mutex
	free []string
	made int
}

// take returns the prefix of tables that are empty. They are the caller's until borrowed.giveBack.
func take(t testing.TB, endpoint string) string {
	t.Helper()
	pool.Lock()
	var p string
	if n := len(pool.free); n > 0 {
		p, pool.free = pool.free[n-1], pool.free[:n-1]
	}
	pool.made++
	made := pool.made
	pool.Unlock()
	if p == "" {
		p = fmt.Sprintf("t%d_%d_%d_", os.Getpid(), time.Now().UnixNano(), made)
		if err := create(context.Background(), endpoint, p, made == 1); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// borrowed are the tables of a prefix that a test has written: asking each of the others for its rows would take more
// requests than most tests.
type borrowed struct {
	prefix  string
	used    atomic.Bool // by requests that note what they write; false: a test has put another transport in their place
	mu      sync.Mutex
	written map[string]bool // by name
	late    bool            // a write may still be carried out
}

// note finds the tables of a request that writes.
func (w *borrowed) note(body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written == nil {
		w.written = map[string]bool{}
	}
	for _, d := range tables.Definitions(w.prefix) {
		if !w.written[d.Name] && bytes.Contains(body, []byte(`"`+d.Name+`"`)) {
			w.written[d.Name] = true
		}
	}
}

// abandon records that a test has not waited for a write, for example because it closed its store or ended a context.
// DynamoDB Local may carry the write out when another test uses the tables.
func (w *borrowed) abandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = true
}

// giveBack empties the tables for the next test. Those that may get a late row are left to the sweep.
func (w *borrowed) giveBack(t testing.TB, endpoint string) {
	w.mu.Lock()
	late := w.late
	w.mu.Unlock()
	if late {
		return
	}
	if err := w.empty(context.Background(), endpoint); err != nil {
		t.Error(err)
		return
	}
	pool.Lock()
	defer pool.Unlock()
	pool.free = append(pool.free, w.prefix)
}

// together runs a function for each of a list, some at a time.
func together[T any](list []T, f func(T) error) error {
	errs := make([]error, len(list))
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i, one := range list {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(one)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// create makes the tables, with nothing but their keys, and first deletes those that
// processes left which have ended: the more there are, the slower DynamoDB Local is.
func create(ctx context.Context, endpoint, prefix string, first bool) error {
	c, err := wire.Dial(ctx, wire.Config{Endpoint: endpoint})
	if err != nil {
		return err
	}
	defer c.Close()
	if first {
		if err := sweep(ctx, c.DB, endpoint); err != nil {
			return err
		}
	}
	return together(tables.Definitions(prefix), func(d tables.Definition) error {
		in := &dynamodb.CreateTableInput{TableName: &d.Name, BillingMode: types.BillingModePayPerRequest}
		for _, k := range []struct {
			name string
			kind types.KeyType
		}{{d.PartitionKey, types.KeyTypeHash}, {d.SortKey, types.KeyTypeRange}} {
			if k.name != "" {
				in.KeySchema = append(in.KeySchema, types.KeySchemaElement{AttributeName: &k.name, KeyType: k.kind})
				in.AttributeDefinitions = append(in.AttributeDefinitions,
					types.AttributeDefinition{AttributeName: &k.name, AttributeType: types.ScalarAttributeTypeS})
			}
		}
		_, err := c.DB.CreateTable(ctx, in)
		return err
	})
}

var madeHere = regexp.MustCompile(`^t([0-9]+)_[0-9]+_[0-9]+_`)

// sweep deletes the tables of ended processes of this machine.
func sweep(ctx context.Context, db *dynamodb.Client, endpoint string) error {
	if u, err := url.Parse(endpoint); err != nil || (u.Hostname() != "127.0.0.1" && u.Hostname() != "localhost") {
		return err
	}
	var old []string
	for pages := dynamodb.NewListTablesPaginator(db, &dynamodb.ListTablesInput{}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, name := range page.TableNames {
			if m := madeHere.FindStringSubmatch(name); m != nil && ended(m[1]) {
				old = append(old, name)
			}
		}
	}
	return together(old, func(name string) error {
		// One that another process deletes, too, or that cannot be deleted, is let alone.
		_, _ = db.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: aws.String(name)})
		return nil
	})
}

// ended says that there is no such process any more, as far as can be known.
func ended(pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return false
	}
	p, err := os.FindProcess(n)
	if err != nil {
		return false
	}
	err = p.Signal(syscall.Signal(0))
	return errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH)
}

// empty deletes all rows, those that have expired included.
func (w *borrowed) empty(ctx context.Context, endpoint string) error {
	c, err := wire.Dial(ctx, wire.Config{Endpoint: endpoint})
	if err != nil {
		return err
	}
	defer c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.DeleteFunc(tables.Definitions(w.prefix), func(d tables.Definition) bool {
		return w.used.Load() && !w.written[d.Name]
	})
	return together(list, func(d tables.Definition) error { return clear(ctx, c.DB, d) })
}

// clear deletes the rows of a table.
func clear(ctx context.Context, db *dynamodb.Client, d tables.Definition) error {
	in := &dynamodb.ScanInput{TableName: &d.Name, ProjectionExpression: aws.String("#p"), ConsistentRead: aws.Bool(true),
		ExpressionAttributeNames: map[string]string{"#p": d.PartitionKey}}
	if d.SortKey != "" {
		in.ProjectionExpression, in.ExpressionAttributeNames["#s"] = aws.String("#p, #s"), d.SortKey
	}
	for pages := dynamodb.NewScanPaginator(db, in); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for rows := range slices.Chunk(page.Items, store.MaxBatchWrite) {
			deletes := make([]types.WriteRequest, len(rows))
			for i, key := range rows {
				deletes[i].DeleteRequest = &types.DeleteRequest{Key: key}
			}
			for left := (map[string][]types.WriteRequest{d.Name: deletes}); len(left) > 0; {
				out, err := db.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: left})
				if err != nil {
					return err
				}
				left = out.UnprocessedItems
			}
		}
	}
	return nil
}
