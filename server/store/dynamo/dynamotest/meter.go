package dynamotest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/parley-chat/parley/server/store/dynamo"
)

// Meter counts what a store sends, and what writes cost by DynamoDB's rules: a unit
// for each KB of an item begun, twice that in a transaction. DynamoDB Local counts one
// item of a table in a transaction only, so that this is the way to know what a plan
// with many items of one table costs. It sees what is sent: that an item has no more than
// the values of its update, that a deleted one has at most 1 KB and that none replaces a
// larger one is assumed. In Parley this is so but for the list of a new group's pending
// members, which is up to 4 KB at first and costs up to a unit or two more.
type Meter struct {
	next aws.HTTPClient

	mu    sync.Mutex
	count Count
}

// Count is what a meter counted.
type Count struct {
	Requests   int
	ByName     map[string]int // requests by DynamoDB's operation
	Sent, Got  int64          // bytes of bodies
	Writes     int            // single actions on items
	WriteUnits int
}

// Watch makes the meter count a store's requests: those that reach the network, beneath
// faults that are injected after.
func (m *Meter) Watch(o *dynamo.Options) {
	wrap(o, func(next aws.HTTPClient) aws.HTTPClient {
		m.next = next
		return m
	})
}

// Reset sets the count to zero.
func (m *Meter) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count = Count{}
}

// Count returns what was counted since the last Reset.
func (m *Meter) Count() Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.count
	c.ByName = map[string]int{}
	for k, n := range m.count.ByName {
		c.ByName[k] = n
	}
	return c
}

// Do implements aws.HTTPClient.
func (m *Meter) Do(r *http.Request) (*http.Response, error) {
	body, r, err := peek(r)
	if err != nil {
		return nil, err
	}
	operation := Operation(r)
	sizes, per, err := written(operation, body)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	c := &m.count
	c.Requests++
	if c.ByName == nil {
		c.ByName = map[string]int{}
	}
	c.ByName[operation]++
	c.Sent += int64(len(body))
	c.Writes += len(sizes)
	for _, n := range sizes {
		c.WriteUnits += per * max(1, (n+1023)/1024)
	}
	m.mu.Unlock()
	resp, err := m.next.Do(r)
	if err == nil {
		resp.Body = counted{resp.Body, m}
	}
	return resp, err
}

type counted struct {
	io.ReadCloser
	m *Meter
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.count.Got += int64(n)
	return n, err
}

// written returns the sizes of the items that a request writes or checks, and what a
// KB of one costs.
func written(operation string, body []byte) (sizes []int, per int, err error) {
	type action struct{ Item, ExpressionAttributeValues map[string]any }
	size := func(a action) int { return max(sizeOf(a.Item), sizeOf(a.ExpressionAttributeValues)) }
	type one = map[string]action
	switch operation {
	case "PutItem", "UpdateItem", "DeleteItem":
		var in action
		err = json.Unmarshal(body, &in)
		return []int{size(in)}, 1, err
	case "TransactWriteItems":
		var in struct{ TransactItems []one }
		err = json.Unmarshal(body, &in)
		for _, w := range in.TransactItems {
			for _, a := range w {
				sizes = append(sizes, size(a))
			}
		}
		return sizes, 2, err
	case "BatchWriteItem":
		var in struct{ RequestItems map[string][]one }
		err = json.Unmarshal(body, &in)
		for _, list := range in.RequestItems {
			for _, w := range list {
				for _, a := range w {
					sizes = append(sizes, size(a))
				}
			}
		}
		return sizes, 1, err
	}
	return nil, 0, nil
}

// sizeOf is the size of an item as DynamoDB counts it: names and values, numbers with
// a byte for two digits and one more, three for a list and one for each of its elements.
func sizeOf(item map[string]any) (n int) {
	for name, v := range item {
		n += len(name) + sizeOfValue(v)
	}
	return n
}

func sizeOfValue(v any) int {
	typed, _ := v.(map[string]any)
	for kind, v := range typed {
		switch kind {
		case "S":
			return len(fmt.Sprint(v))
		case "N":
			digits := strings.Trim(fmt.Sprint(v), "-0")
			return (len(digits)+1)/2 + 1 + strings.Count(fmt.Sprint(v), "-")
		case "B":
			text := []byte(fmt.Sprint(v)) // base64
			return len(text)/4*3 - bytes.Count(text, []byte("="))
		case "L":
			list, _ := v.([]any)
			n := 3
			for _, e := range list {
				n += 1 + sizeOfValue(e)
			}
			return n
		}
	}
	return 1
}
