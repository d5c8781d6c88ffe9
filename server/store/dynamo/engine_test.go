package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Processes that open new tables at once have one generation, whatever is lost on the
// way; a restore gives another.
func TestGeneration(t *testing.T) {
	first := dynamotest.Fresh(t)
	if err := first.Transact(t.Context(),
		store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: dynamo.GenerationKey}}}); err != nil {
		t.Fatal(err)
	}
	got := make([]string, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			o := dynamo.Options{Prefix: first.Options().Prefix, Wire: first.Options().Wire}
			dynamotest.On("PutItem", dynamotest.LostAnswer, dynamotest.Throttled).Inject(&o)
			s, err := dynamo.Open(context.Background(), o)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = s.Generation()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, g := range got {
		if g == "" || g != got[0] {
			t.Fatalf("generations %q", got)
		}
	}
	unmarkAtEnd(t, first)
	line, err := first.Begin(t.Context(), "another", 0)
	id := line.Generation
	if err != nil || id == got[0] {
		t.Fatal(id, err)
	}
	same := dynamo.Options{Prefix: first.Options().Prefix, Wire: first.Options().Wire}
	if g := dynamotest.Open(t, same).Generation(); g != id {
		t.Fatalf("generation %q after %q", g, id)
	}
}

// Rows that no engine of ours wrote are errors, not other rows.
func TestForeignRows(t *testing.T) {
	s := dynamotest.Fresh(t)
	for name, v := range map[string]types.AttributeValue{
		"fraction":     &types.AttributeValueMemberN{Value: "1.5"},
		"large number": &types.AttributeValueMemberN{Value: "9223372036854775808"},
		"map":          &types.AttributeValueMemberM{Value: map[string]types.AttributeValue{}},
		"null":         &types.AttributeValueMemberNULL{Value: true},
		"mixed list": &types.AttributeValueMemberL{
			Value: []types.AttributeValue{&types.AttributeValueMemberN{Value: "1"}}},
		"set of string": &types.AttributeValueMemberSS{Value: []string{"x"}},
	} {
		k := store.Key{Table: store.Messages, PK: name, SK: "1"}
		if err := s.PutRaw(t.Context(), k, "x", v); err != nil {
			t.Fatal(err)
		}
		_, get := s.Get(t.Context(), k, store.Strong)
		_, batch := s.BatchGet(t.Context(), []store.Key{k}, store.Strong)
		_, query := s.Query(t.Context(), store.Query{Table: store.Messages, PK: name})
		check := s.Transact(t.Context(),
			store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: k, Item: store.NewItem(), Cond: store.Absent(), Name: "x"}}})
		for what, err := range map[string]error{"get": get, "batch get": batch, "query": query, "failed condition": check} {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("%s of a %s: %v", what, name, err)
			}
		}
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: k}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// DynamoDB answers with 16 MB at most and leaves the rest of the keys: they are read,
// too.
func TestLargeBatch(t *testing.T) {
	s := dynamotest.Fresh(t)
	const n = 48
	text := strings.Repeat("x", 400<<10-200)
	var keys []store.Key
	for i := range n {
		k := row(fmt.Sprint(i))
		keys = append(keys, k)
		it := store.NewItem(store.Attr{Name: "n", Value: store.Int(int64(i))},
			store.Attr{Name: "s", Value: store.String(text)})
		if err := s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: k, Item: it}}); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Stats()
	items, err := s.BatchGet(t.Context(), keys, store.Eventual)
	if err != nil {
		t.Fatal(err)
	}
	for i, it := range items {
		if it.Get("n").Int64() != int64(i) || len(it.Get("s").Str()) != len(text) {
			t.Fatalf("item %d: %.60v", i, it)
		}
	}
	if after := s.Stats(); after.Requests-before.Requests < 2 || after.Throttled == before.Throttled {
		t.Fatalf("%+v after %+v", after, before)
	}
}

// Conditions and updates as long as the contract allows can be said; of increments, which
// carry a condition each, somewhat fewer.
func TestLongestExpressions(t *testing.T) {
	s := dynamotest.Fresh(t)
	name := func(i int) string { return strings.Repeat("n", 252) + fmt.Sprintf("%03d", i) }
	var c store.Condition
	set, more := store.Update{}, store.Update{}
	for i := range 100 {
		c = c.Ne(name(i), store.Int(7))
		set.Set = append(set.Set, store.Attr{Name: name(i), Value: store.Int(1)})
		if i >= 30 {
			more.Add = append(more.Add, store.Increment{Name: name(i), N: 1})
		}
	}
	for _, w := range []store.Write{
		{Op: store.OpUpdate, Key: row("a"), Update: set, Cond: c, Name: "c"},
		{Op: store.OpUpdate, Key: row("a"), Update: more},
	} {
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}); err != nil {
			t.Fatal(err)
		}
	}
	it, err := s.Get(t.Context(), row("a"), store.Strong)
	if err != nil || len(it) != 100 || it.Get(name(99)).Int64() != 2 {
		t.Fatal(len(it), err)
	}
	err = s.Transact(t.Context(), store.Plan{
		Writes: []store.Write{{Op: store.OpUpdate, Key: row("a"), Update: more, Cond: c, Name: "c"}}})
	if !errors.Is(err, store.ErrInvalid) {
		t.Fatalf("both at once: %v", err)
	}
}

// A row that DynamoDB has not removed yet may be updated by many at once: each update
// counts, none sees what expired.
func TestUpdatesOfExpired(t *testing.T) {
	clock := storetest.NewClock()
	s := dynamotest.Fresh(t, func(o *dynamo.Options) { o.Clock = clock.Now })
	k := store.Key{Table: store.DeliveryState, PK: "u", SK: "c"}
	one := store.Write{Op: store.OpUpdate, Key: k, Update: store.Update{Add: []store.Increment{{Name: "n", N: 1}}}}
	other := putOf("a", 1)
	const workers = 8
	for _, plan := range [][]store.Write{{one}, {one, other}} {
		old := store.NewItem(store.Attr{Name: "old", Value: store.Bool(true)}, store.Attr{Name: "n", Value: store.Int(100)},
			store.Attr{Name: store.ExpiresAtField, Value: store.Int(clock.Now().Unix() + 1)})
		if err := s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: k, Item: old}}); err != nil {
			t.Fatal(err)
		}
		clock.Add(time.Second)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				if err := s.Transact(t.Context(), store.Plan{Writes: plan}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		it, err := s.Get(t.Context(), k, store.Strong)
		if err != nil || len(it) != 1 || it.Get("n").Int64() != workers {
			t.Fatalf("%v, %v", it, err)
		}
	}
}
