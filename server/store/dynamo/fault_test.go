package dynamo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// faults stands between the SDK and DynamoDB Local and does what DynamoDB does and
// DynamoDB Local never: conflicts, throttling, batches left undone, failures of the
// service, answers lost on their way.
type faults struct {
	next aws.HTTPClient
	only func(operation string, n int) string // the fault of request n, from 1; "" for none

	mu       sync.Mutex
	n        int
	injected map[string]int
}

// The faults.
const (
	throttle     = "throttle"       // refused for want of capacity
	conflict     = "conflict"       // another transaction has an item
	mixed        = "mixed"          // as conflict, and another item's condition failed
	cancelledFor = "throttled item" // a transaction cancelled for want of capacity
	inProgress   = "in progress"    // the token's first attempt is under way
	lostRequest  = "lost request"   // the connection broke before DynamoDB had the request
	lostAnswer   = "lost answer"    // and after it was carried out
	failBefore   = "500 before"     // the service failed, nothing was carried out
	failAfter    = "500 after"      // the service failed, it was carried out
	unprocessed  = "unprocessed"    // a batch is carried out in part, or not at all
	noSuchToken  = "other request"  // the token belongs to another request
)

const service = "com.amazonaws.dynamodb.v20120810#"

func (f *faults) Do(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	f.mu.Lock()
	f.n++
	fault := f.only(operation, f.n)
	f.injected[fault]++
	f.mu.Unlock()
	switch fault {
	case throttle:
		return refuse(400, "ThrottlingException", nil)
	case inProgress:
		return refuse(400, "TransactionInProgressException", nil)
	case noSuchToken:
		return refuse(400, "IdempotentParameterMismatchException", nil)
	case failBefore:
		return refuse(500, "InternalServerError", nil)
	case lostRequest:
		return nil, syscall.ECONNRESET
	case conflict, mixed, cancelledFor:
		return f.conflict(r, operation, fault)
	case unprocessed:
		return f.part(r, operation)
	}
	resp, err := f.next.Do(r)
	if err != nil || (fault != lostAnswer && fault != failAfter) {
		return resp, err
	}
	if err := resp.Body.Close(); err != nil {
		return nil, err
	}
	if fault == failAfter {
		return refuse(500, "InternalServerError", nil)
	}
	return nil, io.ErrUnexpectedEOF
}

func (f *faults) count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for fault, k := range f.injected {
		if fault != "" {
			n += k
		}
	}
	return n
}

func answer(status int, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	h := http.Header{"Content-Type": {"application/x-amz-json-1.0"}, "X-Amz-Crc32": {fmt.Sprint(crc32.ChecksumIEEE(b))}}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b))}, err
}

func refuse(status int, kind string, more map[string]any) (*http.Response, error) {
	body := map[string]any{"__type": service + kind, "message": "injected"}
	for k, v := range more {
		body[k] = v
	}
	return answer(status, body)
}

// conflict answers as DynamoDB does when another transaction has an item.
func (f *faults) conflict(r *http.Request, operation, fault string) (*http.Response, error) {
	if operation != "TransactWriteItems" {
		return refuse(400, "TransactionConflictException", nil)
	}
	var in struct{ TransactItems []json.RawMessage }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	reasons := make([]map[string]string, len(in.TransactItems))
	for i := range reasons {
		reasons[i] = map[string]string{"Code": "None"}
		if fault == mixed {
			reasons[i]["Code"] = "ConditionalCheckFailed"
		}
	}
	last := reasons[len(reasons)-1]
	last["Code"], last["Message"] = "TransactionConflict", "Transaction is ongoing for the item"
	if fault == cancelledFor {
		last["Code"], last["Message"] = "ThrottlingError", "Throughput exceeds the current capacity"
	}
	return refuse(400, "TransactionCanceledException", map[string]any{"CancellationReasons": reasons, "Message": "Transaction cancelled"})
}

// part passes on a part of a batch and says of the rest that it was not processed.
func (f *faults) part(r *http.Request, operation string) (*http.Response, error) {
	var in map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, err
	}
	done, rest := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	var tables map[string]json.RawMessage
	if err := json.Unmarshal(in["RequestItems"], &tables); err != nil {
		return nil, err
	}
	name, out := "UnprocessedItems", map[string]json.RawMessage{"UnprocessedItems": nil}
	if operation == "BatchGetItem" {
		name, out = "UnprocessedKeys", map[string]json.RawMessage{"Responses": json.RawMessage("{}")}
	}
	for table, text := range tables {
		list, with := text, map[string]json.RawMessage{}
		if operation == "BatchGetItem" {
			if err := json.Unmarshal(text, &with); err != nil {
				return nil, err
			}
			list = with["Keys"]
		}
		var items []json.RawMessage
		if err := json.Unmarshal(list, &items); err != nil {
			return nil, err
		}
		for part, to := range map[int]map[string]json.RawMessage{0: done, 1: rest} {
			of := items[:len(items)/2]
			if part == 1 {
				of = items[len(items)/2:]
			}
			if len(of) == 0 {
				continue
			}
			b, err := json.Marshal(of)
			if operation == "BatchGetItem" && err == nil {
				with["Keys"] = b
				b, err = json.Marshal(with)
			}
			if err != nil {
				return nil, err
			}
			to[table] = b
		}
	}
	if len(done) > 0 {
		var err error
		if in["RequestItems"], err = json.Marshal(done); err != nil {
			return nil, err
		}
		body, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		forward := r.Clone(r.Context())
		forward.Body, forward.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp, err := f.next.Do(forward)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		if resp.StatusCode != 200 {
			return nil, fmt.Errorf("part of a batch: %s", text)
		}
		if err := json.Unmarshal(text, &out); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(rest)
	if err != nil {
		return nil, err
	}
	out[name] = b
	return answer(200, out)
}

// possible lists what can happen to an operation without its outcome being told as
// unknown to the caller.
func possible(operation string) []string {
	switch operation {
	case "TransactWriteItems":
		return []string{throttle, conflict, mixed, cancelledFor, inProgress, lostRequest, lostAnswer, failBefore, failAfter}
	case "PutItem", "UpdateItem", "DeleteItem":
		return []string{throttle, conflict}
	case "BatchWriteItem", "BatchGetItem":
		return []string{throttle, unprocessed, lostRequest, lostAnswer, failBefore, failAfter}
	case "GetItem", "Query", "Scan":
		return []string{throttle, lostRequest, lostAnswer, failBefore}
	}
	return nil
}

// random lets a third of all requests meet a fault.
func random(seed uint64) func(string, int) string {
	rng := mrand.New(mrand.NewPCG(seed, 1))
	return func(operation string, _ int) string {
		if list := possible(operation); len(list) > 0 && rng.IntN(3) == 0 {
			return list[rng.IntN(len(list))]
		}
		return ""
	}
}

// script gives the first requests of an operation these faults.
func script(operation string, list ...string) func(string, int) string {
	return func(op string, _ int) string {
		if op != operation || len(list) == 0 {
			return ""
		}
		f := list[0]
		list = list[1:]
		return f
	}
}

func noSleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func injecting(f *faults) func(*Options) {
	return func(o *Options) {
		o.Wire.Sleep = noSleep
		o.Wire.Transport = func(next aws.HTTPClient) aws.HTTPClient {
			f.next = next
			if f.injected == nil {
				f.injected = map[string]int{}
			}
			return f
		}
	}
}

// The contract holds whatever happens on the way.
func TestContractUnderFaults(t *testing.T) {
	f := &faults{only: random(1)}
	contract(t, injecting(f))
	if f.count() == 0 {
		t.Fatal("nothing was injected")
	}
}

// With every plan a transaction, answers to plans of one write are lost, too.
func TestContractUnderFaultsWithoutSingleWrites(t *testing.T) {
	f := &faults{only: random(2)}
	contract(t, injecting(f), func(o *Options) { o.noShort = true })
	if f.count() == 0 {
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

func value(t *testing.T, s *Store, pk string) int64 {
	t.Helper()
	it, err := s.Get(t.Context(), row(pk), store.Strong)
	if err != nil {
		t.Fatal(err)
	}
	return it.Get("n").Int64()
}

// What happens to a request, and what the caller is told.
func TestFates(t *testing.T) {
	one, two := []store.Write{add("a", 1)}, []store.Write{add("a", 1), putOf("b", 1)}
	for _, c := range []struct {
		name      string
		writes    []store.Write
		operation string
		faults    []string
		err       error
		written   int64
	}{
		{"conflict, then fine", two, "TransactWriteItems", []string{conflict, conflict}, nil, 1},
		{"conditions of a conflict do not count", two, "TransactWriteItems", []string{mixed}, nil, 1},
		{"throttled, then fine", two, "TransactWriteItems", []string{throttle, cancelledFor}, nil, 1},
		{"lost answer, counted once", two, "TransactWriteItems", []string{lostAnswer, inProgress}, nil, 1},
		{"failed after, counted once", two, "TransactWriteItems", []string{failAfter, failAfter}, nil, 1},
		{"lost request", two, "TransactWriteItems", []string{lostRequest, failBefore}, nil, 1},
		{"token of another request", two, "TransactWriteItems", []string{noSuchToken}, nil, 1},
		{"lost answer without a token", one, "UpdateItem", []string{lostAnswer}, store.ErrAmbiguous, 1},
		{"lost request without a token", one, "UpdateItem", []string{lostRequest}, store.ErrAmbiguous, 0},
		{"failed without a token", one, "UpdateItem", []string{failAfter}, store.ErrAmbiguous, 1},
		{"conflict without a token", one, "UpdateItem", []string{conflict, throttle}, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &faults{only: script(c.operation, c.faults...)}
			s := fresh(t, injecting(f))
			err := s.Transact(t.Context(), store.Plan{Writes: c.writes})
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if n := value(t, s, "a"); n != c.written {
				t.Fatalf("written %d times", n)
			}
			if f.count() != len(c.faults) {
				t.Fatalf("%d of %d faults came about", f.count(), len(c.faults))
			}
		})
	}
}

// A caller that gives up is told what is known.
func TestGivingUp(t *testing.T) {
	two := store.Plan{Writes: []store.Write{add("a", 1), putOf("b", 1)}}
	for _, c := range []struct {
		fault     string
		ambiguous bool
	}{{throttle, false}, {conflict, false}, {lostRequest, true}, {lostAnswer, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		f := &faults{only: func(op string, _ int) string {
			if op != "TransactWriteItems" {
				return ""
			}
			return c.fault
		}}
		rounds := 0
		s := fresh(t, injecting(f), func(o *Options) {
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
	for fault, want := range map[string]error{throttle: store.ErrThrottled, conflict: store.ErrConflict, lostAnswer: store.ErrAmbiguous} {
		f := &faults{only: func(op string, _ int) string {
			if op != "TransactWriteItems" {
				return ""
			}
			return fault
		}}
		s := fresh(t, injecting(f), func(o *Options) {
			o.Wire.Sleep = func(context.Context, time.Duration) error { return errors.New("no more time") }
		})
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{add("a", 1), putOf("b", 1)}}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", fault, err, want)
		}
	}
}

// A batch that is never finished says so; what was left is no error of the caller's.
func TestBatchesNeverFinished(t *testing.T) {
	f := &faults{only: func(op string, n int) string {
		if strings.HasPrefix(op, "Batch") {
			return unprocessed
		}
		return ""
	}}
	rounds := 0
	s := fresh(t, injecting(f), func(o *Options) {
		o.Wire.Sleep = func(ctx context.Context, _ time.Duration) error {
			if rounds++; rounds > 20 {
				return errors.New("no more time")
			}
			return ctx.Err()
		}
	})
	if err := s.BatchWrite(t.Context(), []store.Write{putOf("a", 1), putOf("b", 1)}); !errors.Is(err, store.ErrThrottled) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.BatchGet(t.Context(), []store.Key{row("a"), row("b")}, store.Strong); !errors.Is(err, store.ErrThrottled) {
		t.Errorf("get: %v", err)
	}
	if st := s.Stats(); st.Throttled == 0 || st.Requests == 0 {
		t.Errorf("%+v", st)
	}
}

// A plan with a token is carried out once, even if it is repeated after its answer.
func TestTokens(t *testing.T) {
	s := fresh(t)
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
	s := fresh(t, func(o *Options) { o.Clock = clock.Now })
	once := store.Write{Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: "k"}, Item: store.NewItem(), Cond: store.Absent(), Name: "request"}
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
