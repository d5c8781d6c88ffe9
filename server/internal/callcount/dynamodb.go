package callcount

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"
)

// DynamoDB taps an endpoint, http://host:port. Requests are named by operation
// and tables, as table names them: "PutItem leases", "TransactWriteItems chats+events".
// Bytes are those of bodies.
func DynamoDB(endpoint string, table func(name string) string) (*Tap, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	t := newTap()
	l, err := t.listen()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConns: 512, MaxIdleConnsPerHost: 512, DisableCompression: true}
	srv := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: &httputil.ReverseProxy{
			Transport: counting{t, transport, table},
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host },
			ErrorLog:  log.New(io.Discard, "", 0), // the caller gets the error
		},
	}
	t.running.Go(func() {
		_ = srv.Serve(l)
		_ = srv.Close()
		transport.CloseIdleConnections()
	})
	return t, nil
}

type counting struct {
	t     *Tap
	next  http.RoundTripper
	table func(string) string
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	name := strings.TrimSpace(operation + " " + tablesOf(body, c.table))
	r = r.WithContext(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	res, err := c.next.RoundTrip(r)
	if err != nil {
		c.t.add(name, Count{Calls: 1, Out: int64(len(body))})
		return nil, err
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	c.t.add(name, Count{Calls: 1, Out: int64(len(body)), In: int64(len(answer)), Units: unitsOf(answer)})
	res.Body = io.NopCloser(bytes.NewReader(answer))
	return res, nil
}

// tablesOf names the tables of a request, each once.
func tablesOf(body []byte, table func(string) string) string {
	var req struct {
		TableName     string
		TransactItems []map[string]struct{ TableName string }
		RequestItems  map[string]json.RawMessage
	}
	if json.Unmarshal(body, &req) != nil {
		return ""
	}
	var list []string
	if req.TableName != "" {
		list = append(list, req.TableName)
	}
	for _, item := range req.TransactItems {
		for _, of := range item {
			list = append(list, of.TableName)
		}
	}
	for name := range req.RequestItems {
		list = append(list, name)
	}
	for i, name := range list {
		list[i] = table(name)
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "+")
}

// unitsOf is what an answer says that it cost.
func unitsOf(answer []byte) (sum float64) {
	type capacity struct{ CapacityUnits float64 }
	var one struct{ ConsumedCapacity capacity }
	var many struct{ ConsumedCapacity []capacity }
	if json.Unmarshal(answer, &many) == nil {
		for _, c := range many.ConsumedCapacity {
			sum += c.CapacityUnits
		}
	} else if json.Unmarshal(answer, &one) == nil {
		sum = one.ConsumedCapacity.CapacityUnits
	}
	return sum
}
