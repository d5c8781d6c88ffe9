package kafka

import (
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Nothing is produced while brokers are busy with the last transaction, and where they do
// not say, nothing is waited for.
func TestNextTransactionWaitsForTheLast(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	producer, err := NewTransactional(strings.Join(c.ListenAddrs(), ","), "settle")
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	pair := []*Record{{Topic: ChatsCreated, Partition: 1, Value: []byte("one")},
		{Topic: ChatsCreated, Partition: 2, Value: []byte("two")}}
	if err := Transact(t.Context(), producer, pair); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	left := 3
	c.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		res := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		state := kmsg.NewDescribeTransactionsResponseTransactionState()
		state.TransactionalID = "settle"
		mu.Lock()
		state.State = "CompleteCommit"
		if left > 0 {
			state.State = "PrepareCommit"
		}
		left--
		mu.Unlock()
		note("asked: " + state.State)
		res.TransactionStates = append(res.TransactionStates, state)
		return res, nil, true
	})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		note("produced")
		return nil, nil, false
	})
	if err := Transact(t.Context(), producer, pair); err != nil {
		t.Fatal(err)
	}
	want := []string{"asked: PrepareCommit", "asked: PrepareCommit", "asked: PrepareCommit", "asked: CompleteCommit",
		"produced"}
	for i, w := range want {
		if i >= len(order) || order[i] != w {
			t.Fatalf("%q, want first %q", order, want)
		}
	}
	c.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		res := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		state := kmsg.NewDescribeTransactionsResponseTransactionState()
		state.TransactionalID, state.ErrorCode = "settle", kerr.TransactionalIDAuthorizationFailed.Code
		res.TransactionStates = append(res.TransactionStates, state)
		return res, nil, true
	})
	if err := Transact(t.Context(), producer, pair); err != nil {
		t.Fatalf("brokers that do not say: %v", err)
	}
}
