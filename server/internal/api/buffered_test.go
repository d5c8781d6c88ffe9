package api

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
)

// A unary answer leaves in one write; a stream's messages leave one by one.
func TestFlushIsForStreams(t *testing.T) {
	for _, unary := range []bool{true, false} {
		rec := httptest.NewRecorder()
		w := &bufferedWriter{w: rec, unary: unary, passThrough: true}
		if _, err := w.Write([]byte("message")); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		if rec.Flushed == unary {
			t.Errorf("unary %t: flushed %t", unary, rec.Flushed)
		}
	}
}

// What stood in a header before is kept although the handler adds to it.
func TestHeadersFromBefore(t *testing.T) {
	h := http.Header{"Vary": {"Origin"}}
	before := appendHeader(nil, h)
	h.Add("Vary", "Accept-Encoding")
	h.Set("Content-Type", "application/json")
	if want := []field{{"Vary", []string{"Origin"}}}; !reflect.DeepEqual(before, want) {
		t.Errorf("%v, not %v", before, want)
	}
}

// A call's stack does not grow on the heap.
func TestGrowStackAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, growStack); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
