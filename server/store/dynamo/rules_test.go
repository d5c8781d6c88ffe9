package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// Every call ends within store.CallTimeout, also while nothing is answered and nothing is
// refused: what may have been written is reported as unknown, and the caller's own context,
// which has not ended, is not blamed.
func TestCallsEnd(t *testing.T) {
	two := store.Plan{Writes: []store.Write{putOf("a", 1), putOf("b", 1)}}
	for name, c := range map[string]struct {
		call func(ctx context.Context, s *dynamo.Store) error
		want error
	}{
		"get": {func(ctx context.Context, s *dynamo.Store) error {
			_, err := s.Get(ctx, row("a"), store.Strong)
			return err
		}, store.ErrUnavailable},
		"batch get": {func(ctx context.Context, s *dynamo.Store) error {
			_, err := s.BatchGet(ctx, []store.Key{row("a")}, store.Strong)
			return err
		}, store.ErrUnavailable},
		"query": {func(ctx context.Context, s *dynamo.Store) error {
			_, err := s.Query(ctx, store.Query{Table: store.Messages, PK: "c"})
			return err
		}, store.ErrUnavailable},
		"scan": {func(ctx context.Context, s *dynamo.Store) error {
			_, err := s.Scan(ctx, store.Scan{Table: store.Users, Segments: 1})
			return err
		}, store.ErrUnavailable},
		"transaction": {func(ctx context.Context, s *dynamo.Store) error { return s.Transact(ctx, two) }, store.ErrAmbiguous},
		"one write": {func(ctx context.Context, s *dynamo.Store) error {
			return s.Transact(ctx, store.Plan{Writes: two.Writes[:1]})
		}, store.ErrAmbiguous},
		"batch write": {func(ctx context.Context, s *dynamo.Store) error { return s.BatchWrite(ctx, two.Writes) },
			store.ErrAmbiguous},
	} {
		for _, silent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/silent=%v", name, silent), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					opened := false
					s, err := dynamo.Open(t.Context(),
						dynamo.Options{Wire: wire.Config{Endpoint: "http://127.0.0.1:1", Transport: func(aws.HTTPClient) aws.HTTPClient {
							return doer(func(r *http.Request) (*http.Response, error) {
								switch {
								case !opened:
									return dynamotest.Answer(200, map[string]any{"Item": map[string]any{"pk": map[string]string{"S": "generation"},
										"id": map[string]string{"S": "g"}}})
								case silent:
									<-r.Context().Done()
									return nil, r.Context().Err()
								}
								return dynamotest.Refuse(400, "ThrottlingException", nil)
							})
						}}})
					if err != nil {
						t.Fatal(err)
					}
					opened = true
					began := time.Now()
					err = c.call(t.Context(), s)
					want := c.want
					if !silent {
						want = store.ErrThrottled
					}
					if took := time.Since(began); took > store.CallTimeout || !errors.Is(err, want) ||
						errors.Is(err, context.DeadlineExceeded) && !silent {
						t.Errorf("after %v: %v, want %v", took, err, want)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// DynamoDB knows a token for ten minutes. A plan that is repeated later is a new one to it:
// its own conditions keep it from being carried out twice, as they do on an engine without
// tokens.
func TestForgottenToken(t *testing.T) {
	f := dynamotest.On("TransactWriteItems", dynamotest.LostAnswer, dynamotest.Forgotten, dynamotest.Forgotten)
	s := dynamotest.Fresh(t, f.Inject)
	once := store.Write{Op: store.OpPut, Key: row("once"), Item: store.NewItem(), Cond: store.Absent(), Name: "request"}
	p := store.Plan{Writes: []store.Write{once, add("a", 1)}, Token: "token"}
	for range 2 {
		var failed *store.ConditionError
		if err := s.Transact(t.Context(), p); !errors.As(err, &failed) || failed.Failures[0].Name != "request" ||
			failed.Failures[0].Current == nil {
			t.Fatal(err)
		}
	}
	if n := value(t, s, "a"); n != 1 || f.Count() != 3 {
		t.Fatalf("carried out %d times, %d faults", n, f.Count())
	}
}

// A token that names another plan, which DynamoDB refuses, does not carry out the one
// before once more, and the plan is judged by its own conditions.
func TestTokenOfAnotherPlan(t *testing.T) {
	s := dynamotest.Fresh(t)
	for n, want := range []int64{1, 11} {
		p := store.Plan{Writes: []store.Write{add("a", []int64{1, 10}[n]), putOf("b", 1)}, Token: "the same"}
		if err := s.Transact(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := value(t, s, "a"); got != want {
			t.Fatalf("%d after plan %d, want %d", got, n, want)
		}
	}
}

// Attributes may be named with words that DynamoDB reserves, with signs of its expressions,
// and as parts of the key.
func TestReservedWords(t *testing.T) {
	s := dynamotest.Fresh(t)
	words := []string{"name", "status", "size", "role", "type", "count", "key", "value", "values", "token", "set",
		"remove", "add", "and", "or", "not", "between",
		"attribute_exists", "a.b", "a[0]", "#0", ":0", "a-b", "a b", "user_id", "_user_id", "é", "(", "ttl", "timestamp",
		"user", "hash", "range", "position"}
	for _, w := range words {
		k := row("row of " + w)
		put := store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(store.Attr{Name: w, Value: store.Int(1)}),
			Cond: store.Absent().Without(w), Name: "absent"}
		inc := store.Write{Op: store.OpUpdate, Key: k, Update: store.Update{Add: []store.Increment{{Name: w, N: 1}}},
			Cond: store.Exists().Eq(w, store.Int(1)).Lt(w, store.Int(2)).Gt(w, store.Int(0)).Le(w, store.Int(1)).Ne(w,
				store.Int(5)), Name: "one"}
		set := store.Write{Op: store.OpUpdate, Key: k,
			Update: store.Update{Set: []store.Attr{{Name: w, Value: store.String("")}}},
			Cond:   store.Exists().Eq(w, store.Int(2)), Name: "two"}
		for _, write := range []store.Write{put, inc, set} {
			if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{write, putOf("other", 1)}}); err != nil {
				t.Fatalf("%q: %v", w, err)
			}
		}
		it, err := s.Get(t.Context(), k, store.Strong)
		if err != nil || len(it) != 1 || it[0].Name != w || !it[0].Value.Equal(store.String("")) {
			t.Fatalf("%q: %v, %v", w, it, err)
		}
		del := store.Write{Op: store.OpUpdate, Key: k, Update: store.Update{Remove: []string{w}}}
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{del}}); err != nil {
			t.Fatalf("%q: %v", w, err)
		}
	}
}

// What DynamoDB refuses in any request is refused before one is sent, whatever it stands in:
// keys without a text, and more than DynamoDB takes.
func TestRefusedBeforeSent(t *testing.T) {
	m := &dynamotest.Meter{}
	s := dynamotest.Fresh(t, m.Watch)
	m.Reset()
	many := func(n int) (list []store.Write) {
		for i := range n {
			list = append(list, putOf(fmt.Sprint(i), 1))
		}
		return list
	}
	large := func(pk string, n int) store.Write {
		return store.Write{Op: store.OpPut, Key: row(pk),
			Item: store.NewItem(store.Attr{Name: "s", Value: store.String(strings.Repeat("x", n))})}
	}
	var heavy []store.Write
	for i := range 11 {
		heavy = append(heavy, large(fmt.Sprint(i), 400<<10-1000))
	}
	var keys []store.Key
	for i := range 101 {
		keys = append(keys, row(fmt.Sprint(i)))
	}
	ctx := t.Context()
	_, get := s.Get(ctx, row(""), store.Strong)
	_, batch := s.BatchGet(ctx, []store.Key{row("a"), row("")}, store.Strong)
	_, hundred := s.BatchGet(ctx, keys, store.Strong)
	_, query := s.Query(ctx, store.Query{Table: store.Messages})
	for what, err := range map[string]error{
		"get of an empty key": get, "batch get of an empty key": batch, "batch get of 101 keys": hundred,
		"query of an empty key": query,
		"empty sort key": s.Transact(ctx,
			store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: store.Key{Table: store.Messages, PK: "c"}}}}),
		"101 writes":    s.Transact(ctx, store.Plan{Writes: many(101)}),
		"4 MB":          s.Transact(ctx, store.Plan{Writes: heavy}),
		"400 KB":        s.Transact(ctx, store.Plan{Writes: []store.Write{large("a", 400<<10)}}),
		"26 of a batch": s.BatchWrite(ctx, many(26)),
		"twice":         s.Transact(ctx, store.Plan{Writes: []store.Write{putOf("a", 1), putOf("a", 2)}}),
		"long token":    s.Transact(ctx, store.Plan{Writes: many(2), Token: strings.Repeat("x", 37)}),
	} {
		if !errors.Is(err, store.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if c := m.Count(); c.Requests != 0 {
		t.Errorf("%+v", c.ByName)
	}
	// What is just allowed, DynamoDB takes.
	for what, err := range map[string]error{
		"100 writes":    s.Transact(ctx, store.Plan{Writes: many(100)}),
		"4 MB":          s.Transact(ctx, store.Plan{Writes: heavy[:10]}),
		"25 of a batch": s.BatchWrite(ctx, many(25)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The contract counts an item at no less than DynamoDB does, so that what it allows is never
// refused for its size.
func TestSizesAreNotUnderestimated(t *testing.T) {
	g := gen{rand.New(rand.NewPCG(21, 1)), nil}
	for range 2000 {
		k := store.Key{Table: store.Users, PK: strings.Repeat("k", 1+g.IntN(50))}
		var attrs []store.Attr
		for i := range g.IntN(12) {
			v := g.value()
			if g.IntN(3) == 0 {
				v = store.Int(g.Int64() >> g.IntN(64) * int64(1-2*g.IntN(2)))
			}
			attrs = append(attrs, store.Attr{Name: fmt.Sprint("attribute", i), Value: v})
		}
		it := store.NewItem(attrs...)
		ours, theirs := len(k.PK)+64+it.Size(), dynamo.SizeByTheirRules(k, it)
		if theirs > ours {
			t.Fatalf("%v has %d bytes by DynamoDB's rules, %d by ours", it, theirs, ours)
		}
	}
}

// What is wrong with the credentials, or with the permissions, is reported in one line when the
// store is opened, at once.
func TestWrongCredentials(t *testing.T) {
	for _, kind := range []string{"UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
		"AccessDeniedException", "MissingAuthenticationTokenException"} {
		requests := 0
		_, err := dynamo.Open(t.Context(),
			dynamo.Options{Wire: wire.Config{Endpoint: "http://127.0.0.1:1", Transport: func(aws.HTTPClient) aws.HTTPClient {
				return doer(func(r *http.Request) (*http.Response, error) {
					requests++
					return dynamotest.Refuse(400, kind,
						map[string]any{"message": "wrong:\n\n'POST\n/\n" + strings.Repeat("x-amz-date:1\n", 100)})
				})
			}}})
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), kind) ||
			strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 || requests != 1 {
			t.Errorf("%s: after %d requests: %v", kind, requests, err)
		}
	}
}
