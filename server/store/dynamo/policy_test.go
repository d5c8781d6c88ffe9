package dynamo_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
)

// recorder notes which actions of IAM the requests need.
type recorder struct {
	next aws.HTTPClient
	mu   sync.Mutex
	used []string
}

func (r *recorder) Do(req *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(req.Header.Get("X-Amz-Target"), ".")
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	names := []string{operation}
	if operation == "TransactWriteItems" {
		var in struct{ TransactItems []map[string]json.RawMessage }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		names = nil
		for _, one := range in.TransactItems {
			for kind := range one {
				names = append(names, map[string]string{"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem",
					"ConditionCheck": "ConditionCheckItem"}[kind])
			}
		}
	}
	r.mu.Lock()
	for _, n := range names {
		if n = "dynamodb:" + n; !slices.Contains(r.used, n) {
			r.used = append(r.used, n)
		}
	}
	r.mu.Unlock()
	again := req.Clone(req.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	return r.next.Do(again)
}

// A server may do what it does and nothing else (S-44).
func TestSec_S_44_ServerUsesWhatItMay(t *testing.T) {
	r := &recorder{}
	s := dynamotest.Fresh(t, func(o *dynamo.Options) {
		below := o.Wire.Transport
		o.Wire.Transport = func(next aws.HTTPClient) aws.HTTPClient {
			r.next = below(next)
			return r
		}
	})
	check := func(w store.Write) store.Write {
		w.Op, w.Cond, w.Name = store.OpCheck, store.Absent(), "absent"
		return w
	}
	of := func(op store.Op, pk string) store.Write { return store.Write{Op: op, Key: row(pk)} }
	for _, writes := range [][]store.Write{
		{putOf("a", 1)}, {add("a", 1)}, {of(store.OpDelete, "a")}, {check(of(store.OpCheck, "a"))},
		{putOf("a", 1), add("b", 1), of(store.OpDelete, "c"), check(of(store.OpCheck, "d"))},
	} {
		if err := s.Transact(t.Context(), store.Plan{Writes: writes}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.BatchWrite(t.Context(), []store.Write{putOf("a", 1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BatchGet(t.Context(), []store.Key{row("a")}, store.Strong); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Query(t.Context(), store.Query{Table: store.Messages, PK: "a"}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(r.used)
	if want := tables.Actions(tables.Server); !slices.Equal(r.used, want) {
		t.Errorf("a server uses %v, may %v", r.used, want)
	}
	if _, err := s.Scan(t.Context(), store.Scan{Table: store.Messages, Segments: 1}); err != nil {
		t.Fatal(err)
	}
	at, err := tables.Open(t.Context(), s.Options().Wire, s.Options().Prefix) // as workers do
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if lines, err := at.Unprotected(t.Context()); err != nil || len(lines) > 0 {
		t.Errorf("of DynamoDB Local: %q, %v", lines, err)
	}
	slices.Sort(r.used)
	if want := tables.Actions(tables.Worker); !slices.Equal(r.used, want) {
		t.Errorf("a worker uses %v, may %v", r.used, want)
	}
}
