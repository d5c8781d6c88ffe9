// Package dynamotest is what tests on DynamoDB Local share: stores on empty tables,
// the faults that DynamoDB Local never makes, what requests cost by DynamoDB's rules,
// and a way to it from tests whose time is not real.
//
// It owns no rule of the engine (package dynamo) and none of the contract (package
// storetest). Making tables takes longer than most tests, so they are kept, emptied,
// for the tests that follow; the next process that needs some deletes them.
//
// Concurrency: everything is safe for concurrent use, a store's faults and meter
// included.
package dynamotest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// variable of the environment that says where DynamoDB Local listens.
const variable = "PARLEY_TEST_DYNAMODB"

// Endpoint is where DynamoDB Local listens. Without one the test is skipped.
func Endpoint(t testing.TB) string {
	t.Helper()
	e := os.Getenv(variable)
	if e == "" {
		t.Skip("not run: " + variable + " is not set")
	}
	return e
}

// Open opens a store with the given options and closes it when the test has ended.
func Open(t testing.TB, o dynamo.Options) *dynamo.Store {
	t.Helper()
	s, err := dynamo.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Options are those of tables without rows, which are the test's own until it has
// ended; several stores may be opened on them. Without DynamoDB Local the test is
// skipped.
func Options(t testing.TB) dynamo.Options {
	t.Helper()
	e := Endpoint(t)
	w := &borrowed{prefix: take(t, e)}
	t.Cleanup(func() { w.giveBack(t, e) })
	o := dynamo.Options{Wire: wire.Config{Endpoint: e}, Prefix: w.prefix}
	salt := rand.Text()
	wrap(&o, func(next aws.HTTPClient) aws.HTTPClient { return own{next, salt, w} })
	return o
}

// wrap puts a transport above those that are there.
func wrap(o *dynamo.Options, above func(aws.HTTPClient) aws.HTTPClient) {
	below := o.Wire.Transport
	o.Wire.Transport = func(next aws.HTTPClient) aws.HTTPClient {
		if below != nil {
			next = below(next)
		}
		return above(next)
	}
}

// own is what the requests of a test go through last. It notes the tables that they write, and changes the tokens of
// transactions, equal ones alike: tests whose ids are counted use the same tokens on the same tables one after another,
// and DynamoDB would take the second for a repetition of the first.
type own struct {
	next   aws.HTTPClient
	salt   string
	tables *borrowed
}

var tokenField = regexp.MustCompile(`"ClientRequestToken":"([^"]*)"`)

// Do implements aws.HTTPClient.
func (o own) Do(r *http.Request) (*http.Response, error) {
	o.tables.used.Store(true)
	operation := Operation(r)
	switch operation {
	case "PutItem", "UpdateItem", "BatchWriteItem", "TransactWriteItems", // those that can leave a row
		"DeleteItem": // and one that may remove a row of the next test, if it comes late
	default:
		return o.next.Do(r)
	}
	b, r, err := peek(r)
	if err != nil {
		return nil, err
	}
	o.tables.note(b)
	if operation == "TransactWriteItems" {
		b = tokenField.ReplaceAllFunc(b, func(field []byte) []byte {
			sum := sha256.Sum256([]byte(o.salt + string(field)))
			return fmt.Appendf(nil, `"ClientRequestToken":"%x"`, sum[:16])
		})
	}
	resp, err := o.next.Do(withBody(r, b))
	if err != nil {
		o.tables.abandon()
	}
	return resp, err
}

// Fresh opens a store without rows, or skips the test.
func Fresh(t testing.TB, change ...func(*dynamo.Options)) *dynamo.Store {
	t.Helper()
	o := Options(t)
	for _, f := range change {
		f(&o)
	}
	return Open(t, o)
}
