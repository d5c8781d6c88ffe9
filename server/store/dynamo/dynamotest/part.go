package dynamotest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

type object = map[string]json.RawMessage

// part passes on half of a batch and says of the rest that it was not processed.
func (f *Faults) part(r *http.Request, q Request) (*http.Response, error) {
	in, done, rest := object{}, object{}, object{}
	if err := json.Unmarshal(q.Body, &in); err != nil {
		return nil, err
	}
	var tables object
	if err := json.Unmarshal(in["RequestItems"], &tables); err != nil {
		return nil, err
	}
	reads := q.Operation == "BatchGetItem"
	left, out := "UnprocessedItems", object{"UnprocessedItems": nil}
	if reads {
		left, out = "UnprocessedKeys", object{"Responses": json.RawMessage("{}")}
	}
	for table, text := range tables {
		first, second, err := halves(text, reads)
		if err != nil {
			return nil, err
		}
		if first != nil {
			done[table] = first
		}
		rest[table] = second
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
		resp, err := f.next.Do(withBody(r, body))
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
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
	out[left] = b
	return Answer(http.StatusOK, out)
}

// halves divides what a batch asks of one table; the first half may be nil, for none.
func halves(text json.RawMessage, reads bool) (first, second json.RawMessage, err error) {
	list, with := text, object{}
	if reads {
		if err := json.Unmarshal(text, &with); err != nil {
			return nil, nil, err
		}
		list = with["Keys"]
	}
	var items []json.RawMessage
	if err := json.Unmarshal(list, &items); err != nil {
		return nil, nil, err
	}
	half := func(items []json.RawMessage) (b json.RawMessage, err error) {
		if len(items) == 0 {
			return nil, nil
		}
		if b, err = json.Marshal(items); err == nil && reads {
			with["Keys"] = b
			b, err = json.Marshal(with)
		}
		return b, err
	}
	if first, err = half(items[:len(items)/2]); err == nil {
		second, err = half(items[len(items)/2:])
	}
	return first, second, err
}
