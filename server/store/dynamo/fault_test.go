package dynamo_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/storetest"
)

// The contract holds whatever happens on the way.
func TestContractUnderFaults(t *testing.T) {
	f := dynamotest.Random(1)
	contract(t, f.Inject)
	if f.Count() == 0 {
		t.Fatal("nothing was injected")
	}
}

// With every plan a transaction, answers to plans of one write are lost, too.
func TestContractUnderFaultsWithoutSingleWrites(t *testing.T) {
	f := dynamotest.Random(2)
	contract(t, f.Inject, dynamo.NoShort)
	if f.Count() == 0 {
		t.Fatal("nothing was injected")
	}
}

func row(pk string) store.Key { return store.Key{Table: store.Users, PK: pk} }

func putOf(pk string, n int64) store.Write {
	return store.Write{Op: store.OpPut, Key: row(pk), Item: store.NewItem(store.Attr{Name: "n", Value: store.Int(n)})}
}

func add(pk string, n int64) store.Write {
	return store.Write{Op: store.OpUpdate, Key: row(pk), Update: store.Update{Add: []store.Increment{{Name: "n", N: n}}}}
}

func value(t *testing.T, s *dynamo.Store, pk string) int64 {
	t.Helper()
	it, err := s.Get(t.Context(), row(pk), store.Strong)
	if err != nil {
		t.Fatal(err)
	}
	return it.Get("n").Int64()
}

// What happens to a request, and what is reported to the caller.
func TestFates(t *testing.T) {
	one, two := []store.Write{add("a", 1)}, []store.Write{add("a", 1), putOf("b", 1)}
	for _, c := range []struct {
		name      string
		writes    []store.Write
		operation string
		faults    []dynamotest.Fault
		err       error
		written   int64
	}{
		{"conflict, then fine", two, "TransactWriteItems", []dynamotest.Fault{dynamotest.Conflict, dynamotest.Conflict}, nil,
			1},
		{"conditions of a conflict do not count", two, "TransactWriteItems", []dynamotest.Fault{dynamotest.Mixed}, nil, 1},
		{"throttled, then fine", two, "TransactWriteItems", []dynamotest.Fault{dynamotest.Throttled, dynamotest.NoCapacity},
			nil, 1},
		{"lost answer, counted once", two, "TransactWriteItems",
			[]dynamotest.Fault{dynamotest.LostAnswer, dynamotest.InProgress}, nil, 1},
		{"failed after, counted once", two, "TransactWriteItems",
			[]dynamotest.Fault{dynamotest.FailAfter, dynamotest.FailAfter}, nil, 1},
		{"lost request", two, "TransactWriteItems", []dynamotest.Fault{dynamotest.LostRequest, dynamotest.FailBefore}, nil,
			1},
		{"token of another request", two, "TransactWriteItems", []dynamotest.Fault{dynamotest.OtherToken}, nil, 1},
		{"limits of the account and of a partition", two, "TransactWriteItems",
			[]dynamotest.Fault{dynamotest.TooMany, dynamotest.Capacity, dynamotest.Capacity}, nil, 1},
		{"a partition without capacity, without a token", one, "UpdateItem",
			[]dynamotest.Fault{dynamotest.Capacity, dynamotest.Capacity}, nil, 1},
		{"lost answer without a token", one, "UpdateItem", []dynamotest.Fault{dynamotest.LostAnswer}, store.ErrAmbiguous, 1},
		{"lost request without a token", one, "UpdateItem", []dynamotest.Fault{dynamotest.LostRequest}, store.ErrAmbiguous,
			0},
		{"failed without a token", one, "UpdateItem", []dynamotest.Fault{dynamotest.FailAfter}, store.ErrAmbiguous, 1},
		{"conflict without a token", one, "UpdateItem", []dynamotest.Fault{dynamotest.Conflict, dynamotest.Throttled}, nil,
			1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := dynamotest.On(c.operation, c.faults...)
			s := dynamotest.Fresh(t, f.Inject)
			err := s.Transact(t.Context(), store.Plan{Writes: c.writes})
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if n := value(t, s, "a"); n != c.written {
				t.Fatalf("written %d times", n)
			}
			if f.Count() != len(c.faults) {
				t.Fatalf("%d of %d faults came about", f.Count(), len(c.faults))
			}
		})
	}
}

// A caller that gives up learns what is known.
func TestGivingUp(t *testing.T) {
	two := store.Plan{Writes: []store.Write{add("a", 1), putOf("b", 1)}}
	for _, c := range []struct {
		fault     dynamotest.Fault
		ambiguous bool
	}{{dynamotest.Throttled, false}, {dynamotest.Conflict, false}, {dynamotest.LostRequest, true},
		{dynamotest.LostAnswer, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		f := dynamotest.Always("TransactWriteItems", c.fault)
		rounds := 0
		s := dynamotest.Fresh(t, f.Inject, func(o *dynamo.Options) {
			o.Wire.Sleep = func(ctx context.Context, _ time.Duration) error {
				if rounds++; rounds == 3 {
					cancel()
				}
				return ctx.Err()
			}
		})
		err := s.Transact(ctx, two)
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrAmbiguous) != c.ambiguous {
			t.Errorf("%s: %v", c.fault, err)
		}
		cancel()
	}
}

// Without time for another attempt the last answer stands, before the time is up.
func TestLastWords(t *testing.T) {
	for fault, want := range map[dynamotest.Fault]error{dynamotest.Throttled: store.ErrThrottled,
		dynamotest.Conflict: store.ErrConflict, dynamotest.LostAnswer: store.ErrAmbiguous} {
		f := dynamotest.Always("TransactWriteItems", fault)
		s := dynamotest.Fresh(t, f.Inject, func(o *dynamo.Options) {
			o.Wire.Sleep = func(context.Context, time.Duration) error { return errors.New("no more time") }
		})
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{add("a", 1), putOf("b", 1)}}); !errors.Is(err,
			want) {
			t.Errorf("%s: %v, want %v", fault, err, want)
		}
	}
}

// A batch that is never finished says so; what was left is no error of the caller's.
func TestBatchesNeverFinished(t *testing.T) {
	opened := false // which reads with a batch, too
	f := dynamotest.NewFaults(func(r dynamotest.Request) dynamotest.Fault {
		if opened && strings.HasPrefix(r.Operation, "Batch") {
			return dynamotest.Unprocessed
		}
		return dynamotest.None
	})
	rounds := 0
	s := dynamotest.Fresh(t, f.Inject, func(o *dynamo.Options) {
		o.Wire.Sleep = func(ctx context.Context, _ time.Duration) error {
			if rounds++; rounds > 20 {
				return errors.New("no more time")
			}
			return ctx.Err()
		}
	})
	opened = true
	if err := s.BatchWrite(t.Context(), []store.Write{putOf("a", 1), putOf("b", 1)}); !errors.Is(err, store.ErrThrottled) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.BatchGet(t.Context(), []store.Key{row("a"), row("b")}, store.Strong); !errors.Is(err,
		store.ErrThrottled) {
		t.Errorf("get: %v", err)
	}
	if st := s.Stats(); st.Throttled == 0 || st.Requests == 0 {
		t.Errorf("%+v", st)
	}
}

// A plan with a token is carried out once, even if it is repeated after its answer.
func TestTokens(t *testing.T) {
	s := dynamotest.Fresh(t)
	p := store.Plan{Writes: []store.Write{add("a", 1), add("b", 1)}, Token: rand.Text()}
	for range 3 {
		if err := s.Transact(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if n := value(t, s, "a"); n != 1 {
		t.Fatalf("carried out %d times", n)
	}
}

// Where the time stands in the request, a repetition is another request to DynamoDB:
// then the plan's own conditions tell that it was carried out.
func TestTokenAtAnotherTime(t *testing.T) {
	clock := storetest.NewClock()
	s := dynamotest.Fresh(t, func(o *dynamo.Options) { o.Clock = clock.Now })
	once := store.Write{Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: "k"}, Item: store.NewItem(),
		Cond: store.Absent(), Name: "request"}
	p := store.Plan{Writes: []store.Write{once, add("a", 1)}, Token: rand.Text()}
	if err := s.Transact(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	clock.Add(time.Second)
	var failed *store.ConditionError
	if err := s.Transact(t.Context(), p); !errors.As(err, &failed) || failed.Failures[0].Name != "request" {
		t.Fatal(err)
	}
	if n := value(t, s, "a"); n != 1 {
		t.Fatalf("carried out %d times", n)
	}
}
