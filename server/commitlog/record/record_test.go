package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// odd are records with all that Kafka allows and messages of topics do not.
var odd = []Record{
	{},
	{Key: []byte{}, Value: []byte{}},
	{Key: []byte{0, 0xff, 0xfe}, Time: 1},
	{Value: []byte{}, Time: -1},
	{Time: math.MaxInt64, Headers: []Header{{}, {}, {Key: "a"}, {Key: "a", Value: []byte{}},
		{Key: "a", Value: []byte{0xff, 0}}}},
	{Time: math.MinInt64, Key: []byte("k"), Headers: []Header{{Key: "\xff\x00", Value: []byte("v")}}},
	{Key: bytes.Repeat([]byte{7}, 1000), Value: bytes.Repeat([]byte{9}, 100_000)},
}

func appendAll(list []Record) (b []byte) {
	for i := range list {
		before := len(b)
		if b = list[i].Append(b); len(b)-before != list[i].Size() {
			panic(fmt.Sprintf("record %d has %d bytes, not %d", i, len(b)-before, list[i].Size()))
		}
	}
	return b
}

// A record comes back as it was: null is not empty, and headers keep their order and their
// repetitions.
func TestRecords(t *testing.T) {
	b := appendAll(odd)
	ends, err := Split(b, len(odd))
	if err != nil || len(ends) != len(odd) || int(ends[len(odd)-1]) != len(b) {
		t.Fatalf("%d bytes end at %v, %v", len(b), ends, err)
	}
	rest := b
	for i := range odd {
		var got Record
		if got, rest, err = Parse(rest); err != nil || !reflect.DeepEqual(got, odd[i]) {
			t.Fatalf("record %d is %+v, %v; was %+v", i, got, err, odd[i])
		}
		if len(b)-len(rest) != int(ends[i]) {
			t.Errorf("record %d ends at %d, not at %d", i, len(b)-len(rest), ends[i])
		}
	}
}

// What is cut off, has too much, or another count is no encoding.
func TestNotRecords(t *testing.T) {
	b := appendAll(odd[:6])
	for n := range b {
		if _, err := Split(b[:n], 6); !errors.Is(err, ErrFormat) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	for name, c := range map[string]struct {
		b     []byte
		count int
	}{
		"one too many":     {b, 7},
		"one too few":      {b, 5},
		"more behind it":   {append(bytes.Clone(b), 0), 6},
		"a long key":       {[]byte{0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0}, 1},
		"a length of 2^63": {[]byte{0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0}, 1},
		"many headers":     {[]byte{0, 0, 0, 0x91, 0x4e}, 1},
	} {
		if _, err := Split(c.b, c.count); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Parse([]byte{0, 0, 0, 0x90, 0x4e}); !errors.Is(err, ErrFormat) {
		t.Errorf("10,000 headers in no byte: %v", err)
	}
	if r := (Record{Headers: make([]Header, 10_001)}); r.Valid() {
		t.Error("a record with 10,001 headers is valid")
	}
	if r := (Record{Headers: make([]Header, 10_000)}); !r.Valid() {
		t.Error("a record with 10,000 headers is not valid")
	}
}

func randomReferences(rng *rand.Rand, n int) (r References) {
	r.PublishedIn = fmt.Sprint("generation ", rng.IntN(3))
	e := Reference{Chat: "chat_0", Version: 1, Schema: 1}
	for range n {
		switch rng.IntN(6) {
		case 0:
			e.Chat = fmt.Sprint("chat_", rng.IntN(20))
		case 1:
			e.Version = 1 + rng.Int64N(math.MaxInt64-1)
		case 2:
			e.Schema = rng.Int32N(math.MaxInt32)
		case 3:
			e.Time = int64(rng.Uint64())
		case 4:
			e.Version = min(e.Version, math.MaxInt64-1) + 1
		}
		r.List = append(r.List, e)
	}
	return r
}

func TestReferences(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		want := randomReferences(rng, 1+rng.IntN(50))
		b, ends := want.Append([]byte("before"))
		b = b[len("before"):]
		if len(b) > want.Size() {
			t.Fatalf("%d bytes, not %d at most", len(b), want.Size())
		}
		got, found, err := ParseReferences(b, len(want.List))
		if err != nil || !reflect.DeepEqual(got, want) || !reflect.DeepEqual(found, ends) ||
			int(ends[len(ends)-1]) != len(b) {
			t.Fatalf("%+v ends at %v, %v; was %+v, which ends at %v", got, found, err, want, ends)
		}
		for n := range b {
			if _, _, err := ParseReferences(b[:n], len(want.List)); !errors.Is(err, ErrFormat) {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
		}
		if _, _, err := ParseReferences(append(b, 0), len(want.List)); !errors.Is(err, ErrFormat) {
			t.Fatalf("more behind it: %v", err)
		}
		if _, _, err := ParseReferences(b, len(want.List)+1); !errors.Is(err, ErrFormat) {
			t.Fatalf("one too many: %v", err)
		}
	}
}

// Consecutive events of a chat that are published together take a byte each.
func TestReferencesAreSmall(t *testing.T) {
	r := References{PublishedIn: "g"}
	for n := range int64(100) {
		r.List = append(r.List, Reference{Chat: "chat_01J0000000000000000000000A", Version: n + 7, Schema: 4,
			Time: 1_700_000_000_000})
	}
	b, ends := r.Append(nil)
	if len(b) > 2+1+32+1+1+6+99 || ends[99]-ends[0] != 99 {
		t.Errorf("%d bytes, of these %d of 99 entries", len(b), ends[99]-ends[0])
	}
}

func TestNotReferences(t *testing.T) {
	for name, b := range map[string][]byte{
		"no chat":            {0, nextVersion | sameSchema | sameTime, 0},
		"chat of none":       {0, sameChat | nextVersion | sameSchema | sameTime},
		"version 0":          {0, sameSchema | sameTime, 1, 'c', 0},
		"version 2^63":       {0, sameSchema | sameTime, 1, 'c', 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
		"schema 2^31":        {0, nextVersion | sameTime, 1, 'c', 0x80, 0x80, 0x80, 0x80, 0x08},
		"unknown in common":  {0, 0x10 | nextVersion | sameSchema | sameTime, 1, 'c'},
		"a long generation":  {9, 1, 1, 1},
		"nothing whatsoever": {},
	} {
		if _, _, err := ParseReferences(b, 1); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, _, err := ParseReferences([]byte{0, nextVersion | sameSchema | sameTime, 1, 'c'}, 1); err != nil ||
		got.List[0] != (Reference{Chat: "c", Version: 1}) {
		t.Errorf("%+v, %v", got, err)
	}
	// The version after the highest is none.
	b, _ := (&References{List: []Reference{{Chat: "c", Version: math.MaxInt64}}}).Append(nil)
	if _, _, err := ParseReferences(append(b, known), 2); !errors.Is(err, ErrFormat) {
		t.Errorf("version 2^63 by counting: %v", err)
	}
	for _, r := range []Reference{
		{Version: 1}, {Chat: "c"}, {Chat: "c", Version: -1}, {Chat: "c", Version: 1, Schema: -1},
	} {
		if r.Valid() {
			t.Errorf("%+v is valid", r)
		}
	}
}

// What is parsed encodes to something that parses to the same; nothing panics or takes more
// memory than its input justifies.
func FuzzParse(f *testing.F) {
	f.Add(appendAll(odd[:6]), 6)
	r := randomReferences(rand.New(rand.NewPCG(1, 1)), 20)
	b, _ := r.Append(nil)
	f.Add(b, 20)
	f.Fuzz(func(t *testing.T, b []byte, count int) {
		if count < 1 || count > 10_000 {
			return
		}
		if ends, err := Split(b, count); err == nil {
			at := uint32(0)
			for _, end := range ends {
				got, rest, err := Parse(b[at:end])
				if err != nil || len(rest) > 0 {
					t.Fatalf("a record cannot be read that Split found: %v", err)
				}
				again, _, err := Parse(got.Append(nil))
				if err != nil || !reflect.DeepEqual(again, got) {
					t.Fatalf("%+v became %+v, %v", got, again, err)
				}
				at = end
			}
		}
		if got, _, err := ParseReferences(b, count); err == nil {
			body, _ := got.Append(nil)
			again, _, err := ParseReferences(body, count)
			if err != nil || !reflect.DeepEqual(again, got) {
				t.Fatalf("%+v became %+v, %v", got, again, err)
			}
		}
	})
}
