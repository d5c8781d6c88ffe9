package dynamotest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store/dynamo"
)

// Fault is what happens to a request.
type Fault string

// The faults.
const (
	None        Fault = ""
	Throttled   Fault = "throttled"         // refused for want of capacity
	Conflict    Fault = "conflict"          // another transaction has an item
	Mixed       Fault = "mixed"             // as Conflict, and another item's condition failed
	NoCapacity  Fault = "throttled item"    // a transaction cancelled for want of capacity
	InProgress  Fault = "in progress"       // the token's first attempt is under way
	LostRequest Fault = "lost request"      // the connection broke before DynamoDB had the request
	LostAnswer  Fault = "lost answer"       // and after it was carried out
	FailBefore  Fault = "500 before"        // the service failed, nothing was carried out
	FailAfter   Fault = "500 after"         // the service failed, it was carried out
	Unprocessed Fault = "unprocessed"       // a batch is carried out in part, or not at all
	OtherToken  Fault = "other request"     // the token belongs to another request
	Forgotten   Fault = "forgotten token"   // the token's first request was more than ten minutes ago
	Slow        Fault = "slow"              // carried out and answered, after other requests
	Hang        Fault = "no answer"         // nothing comes, until the caller gives up
	TooMany     Fault = "too many requests" // refused: the account's limit is reached
	Capacity    Fault = "hot partition"     // refused: the table's or the partition's capacity is used up
)

// Faults stands between the SDK and DynamoDB Local and does what DynamoDB does and
// DynamoDB Local never: conflicts, throttling, batches left undone, failures of the
// service, answers lost on their way.
type Faults struct {
	choose func(Request) Fault

	mu   sync.Mutex
	next aws.HTTPClient
	n    int
	met  map[Fault]int
}

// Request is what a fault is chosen for.
type Request struct {
	Operation string // DynamoDB's name, e.g. "TransactWriteItems"
	N         int    // of all requests, from 1
	Body      []byte // JSON
}

// NewFaults makes the faults that choose, which is called for one request at a time,
// says.
func NewFaults(choose func(Request) Fault) *Faults {
	return &Faults{choose: choose, met: map[Fault]int{}}
}

// On says of which operation the first requests meet these faults.
func On(operation string, list ...Fault) *Faults {
	return NewFaults(func(r Request) (f Fault) {
		if r.Operation == operation && len(list) > 0 {
			f, list = list[0], list[1:]
		}
		return f
	})
}

// Always lets every request of an operation meet a fault.
func Always(operation string, f Fault) *Faults {
	return NewFaults(func(r Request) Fault {
		if r.Operation == operation {
			return f
		}
		return None
	})
}

// Random lets a third of all requests meet a fault, in an order that the seed gives,
// but none after which the outcome of a single write is not known.
func Random(seed uint64) *Faults { return random(seed, possible) }

// RandomChaos is Random with unknown outcomes of single writes, too.
func RandomChaos(seed uint64) *Faults {
	return random(seed, func(operation string) []Fault {
		switch operation {
		case "PutItem", "UpdateItem", "DeleteItem":
			return []Fault{Throttled, Conflict, LostRequest, LostAnswer, FailBefore, FailAfter, Slow}
		}
		return possible(operation)
	})
}

func random(seed uint64, possible func(string) []Fault) *Faults {
	rng := rand.New(rand.NewPCG(seed, 1))
	return NewFaults(func(r Request) Fault {
		if list := possible(r.Operation); len(list) > 0 && rng.IntN(3) == 0 {
			return list[rng.IntN(len(list))]
		}
		return None
	})
}

// possible lists what can happen to an operation without its outcome being reported
// to the caller as unknown.
func possible(operation string) []Fault {
	switch operation {
	case "TransactWriteItems":
		return []Fault{Throttled, TooMany, Capacity, Conflict, Mixed, NoCapacity, InProgress, LostRequest, LostAnswer,
			FailBefore, FailAfter, Slow}
	case "PutItem", "UpdateItem", "DeleteItem":
		return []Fault{Throttled, Capacity, Conflict}
	case "BatchWriteItem", "BatchGetItem":
		return []Fault{Throttled, Capacity, Unprocessed, LostRequest, LostAnswer, FailBefore, FailAfter, Slow}
	case "GetItem", "Query", "Scan":
		return []Fault{Throttled, Capacity, LostRequest, LostAnswer, FailBefore, Slow}
	}
	return nil
}

// Inject makes a store meet the faults. Its repetitions do not wait, so that no test
// depends on time.
func (f *Faults) Inject(o *dynamo.Options) {
	o.Wire.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	wrap(o, func(next aws.HTTPClient) aws.HTTPClient {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.next = next
		return f
	})
}

// Count is the number of requests that met a fault.
func (f *Faults) Count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.met {
		n += k
	}
	return n
}

// Met says how often each fault was met.
func (f *Faults) Met() map[Fault]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := make(map[Fault]int, len(f.met))
	for k, n := range f.met {
		m[k] = n
	}
	return m
}

// Operation is DynamoDB's name of what a request asks for.
func Operation(r *http.Request) string {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	return operation
}

// Do implements aws.HTTPClient.
func (f *Faults) Do(r *http.Request) (*http.Response, error) {
	body, r, err := peek(r)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.n++
	q := Request{Operation: Operation(r), N: f.n, Body: body}
	fault := f.choose(q)
	if fault != None {
		f.met[fault]++
	}
	f.mu.Unlock()
	switch fault {
	case Throttled:
		return Refuse(400, "ThrottlingException", nil)
	case TooMany:
		return Refuse(400, "RequestLimitExceeded", nil)
	case Capacity:
		return Refuse(400, "ProvisionedThroughputExceededException", nil)
	case InProgress:
		return Refuse(400, "TransactionInProgressException", nil)
	case OtherToken:
		return Refuse(400, "IdempotentParameterMismatchException", nil)
	case FailBefore:
		return Refuse(500, "InternalServerError", nil)
	case LostRequest:
		return nil, syscall.ECONNRESET
	case Hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case Conflict, Mixed, NoCapacity:
		return conflict(q, fault)
	case Unprocessed:
		return f.part(r, q)
	case Forgotten:
		if r, err = forget(r, q); err != nil {
			return nil, err
		}
	case Slow:
		select {
		case <-time.After(time.Duration(1+q.N%4) * 5 * time.Millisecond):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	resp, err := f.next.Do(r)
	if err != nil || (fault != LostAnswer && fault != FailAfter) {
		return resp, err
	}
	if err := resp.Body.Close(); err != nil {
		return nil, err
	}
	if fault == FailAfter {
		return Refuse(500, "InternalServerError", nil)
	}
	return nil, io.ErrUnexpectedEOF
}

// peek reads the body of a request and returns one that has it still.
func peek(r *http.Request) ([]byte, *http.Request, error) {
	if r.Body == nil {
		return nil, r, nil
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil, err
	}
	return b, withBody(r, b), r.Body.Close()
}

func withBody(r *http.Request, b []byte) *http.Request {
	again := r.Clone(r.Context())
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	return again
}

// Answer makes an answer of the service.
func Answer(status int, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	h := http.Header{"Content-Type": {"application/x-amz-json-1.0"}, "X-Amz-Crc32": {fmt.Sprint(crc32.ChecksumIEEE(b))}}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader(b)),
		ContentLength: int64(len(b))}, err
}

// Refuse makes an error of the service, with more attributes than its message.
func Refuse(status int, kind string, more map[string]any) (*http.Response, error) {
	body := map[string]any{"__type": "com.amazonaws.dynamodb.v20120810#" + kind, "message": "injected"}
	for k, v := range more {
		body[k] = v
	}
	return Answer(status, body)
}

// conflict answers as DynamoDB does when another transaction has an item.
func conflict(q Request, fault Fault) (*http.Response, error) {
	if q.Operation != "TransactWriteItems" {
		return Refuse(400, "TransactionConflictException", nil)
	}
	var in struct{ TransactItems []json.RawMessage }
	if err := json.Unmarshal(q.Body, &in); err != nil {
		return nil, err
	}
	reasons := make([]map[string]string, len(in.TransactItems))
	for i := range reasons {
		reasons[i] = map[string]string{"Code": "None"}
		if fault == Mixed {
			reasons[i]["Code"] = "ConditionalCheckFailed"
		}
	}
	last := reasons[len(reasons)-1]
	last["Code"], last["Message"] = "TransactionConflict", "Transaction is ongoing for the item"
	if fault == NoCapacity {
		last["Code"], last["Message"] = "ThrottlingError", "Throughput exceeds the current capacity"
	}
	return Refuse(400, "TransactionCanceledException",
		map[string]any{"CancellationReasons": reasons, "Message": "Transaction cancelled"})
}

// forget gives a transaction another token, as if the service had forgotten its own.
func forget(r *http.Request, q Request) (*http.Request, error) {
	var in map[string]any
	if err := json.Unmarshal(q.Body, &in); err != nil {
		return nil, err
	}
	in["ClientRequestToken"] = fmt.Sprint("another", q.N)
	b, err := json.Marshal(in)
	return withBody(r, b), err
}
