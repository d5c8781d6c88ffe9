package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

type message struct {
	kind    string
	headers map[string]string
}

// messages count how often they are checked.
type messages struct {
	list  []message
	end   int64
	reads *int
}

func (m messages) Count() int { return len(m.list) }
func (m messages) End() int64 { return m.end }
func (m messages) Type(i int) string {
	if m.reads != nil {
		*m.reads++
	}
	return m.list[i].kind
}

func (m messages) Header(i int, name string) (string, bool) {
	v, ok := m.list[i].headers[name]
	return v, ok
}

func where(header string, o topicv1.FilterClause_Operator, values ...string) *topicv1.FilterClause {
	return &topicv1.FilterClause{Header: header, Operator: o, Values: values}
}

func compile(t *testing.T, clauses ...*topicv1.FilterClause) *Filter {
	t.Helper()
	f, err := CompileFilter(&topicv1.Filter{Clauses: clauses})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const (
	in      = topicv1.FilterClause_OPERATOR_IN
	notIn   = topicv1.FilterClause_OPERATOR_NOT_IN
	prefix  = topicv1.FilterClause_OPERATOR_PREFIX
	exists  = topicv1.FilterClause_OPERATOR_EXISTS
	missing = topicv1.FilterClause_OPERATOR_MISSING
)

func TestClauses(t *testing.T) {
	m := messages{list: []message{
		{kind: "order.made", headers: map[string]string{"region": "eu", "empty": ""}},
		{kind: "", headers: nil},
		{kind: "user.made", headers: map[string]string{"region": "us"}},
	}}
	for name, c := range map[string]struct {
		f    *Filter
		want []int
	}{
		"type is one of":         {compile(t, where("", in, "user.made", "order.made")), []int{0, 2}},
		"type is none of":        {compile(t, where("", notIn, "user.made")), []int{0, 1}},
		"type begins with":       {compile(t, where("", prefix, "x", "order.")), []int{0}},
		"there is a type":        {compile(t, where("", exists)), []int{0, 2}},
		"there is no type":       {compile(t, where("", missing)), []int{1}},
		"header is one of":       {compile(t, where("region", in, "eu")), []int{0}},
		"header is none of":      {compile(t, where("region", notIn, "eu")), []int{1, 2}},
		"empty is there":         {compile(t, where("empty", exists)), []int{0}},
		"empty is not a value":   {compile(t, where("region", in, "")), nil},
		"header is missing":      {compile(t, where("region", missing)), []int{1}},
		"header begins with":     {compile(t, where("region", prefix, "e", "u")), []int{0, 2}},
		"all clauses must hold":  {compile(t, where("region", exists), where("", prefix, "user")), []int{2}},
		"the empty type, listed": {compile(t, where("", in, "")), nil},
	} {
		var got []int
		bits := c.f.Evaluate(m, nil)
		for i := range m.list {
			if bits.Has(i) {
				got = append(got, i)
			}
			if bits.Has(i) != c.f.Accepts(m, i) {
				t.Errorf("%s: message %d", name, i)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, should be %v", name, got, c.want)
		}
	}
}

func TestInvalid(t *testing.T) {
	many := slices.Repeat([]*topicv1.FilterClause{where("a", exists)}, 17)
	for name, f := range map[string][]*topicv1.FilterClause{
		"clauses":           many,
		"no operator":       {where("a", 0, "x")},
		"unknown operator":  {where("a", 77, "x")},
		"nothing to find":   {where("a", in)},
		"values for exists": {where("a", exists, "x")},
		"values":            {where("a", in, slices.Repeat([]string{"x"}, 65)...)},
		"long value":        {where("a", in, strings.Repeat("x", 4097))},
		"long name":         {where(strings.Repeat("x", 256), exists)},
		"nil":               {nil},
	} {
		if _, err := CompileFilter(&topicv1.Filter{Clauses: f}); !errors.Is(err, ErrInvalidFilter) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range []*topicv1.Filter{nil, {}} {
		if got, err := CompileFilter(f); got != nil || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	}
}

// Filters that mean the same share what is found out; others do not.
func TestShared(t *testing.T) {
	reads := 0
	m := messages{list: slices.Repeat([]message{{kind: "a"}, {kind: "b"}}, 100), end: 200, reads: &reads}
	c := filterCache{}
	a := c.Use(compile(t, where("", in, "a", "c"), where("x", missing)))
	b := c.Use(compile(t, where("x", missing), where("", in, "c", "a", "a")))
	other := c.Use(compile(t, where("", in, "b")))
	if a != b || a == other {
		t.Fatal("not the same, or too much so")
	}
	for i := range m.list {
		if a.Accepts(m, i) != (i%2 == 0) || b.Accepts(m, i) != (i%2 == 0) {
			t.Fatalf("message %d", i)
		}
	}
	if reads != 200 {
		t.Errorf("%d reads of 200 messages", reads)
	}
	for end := range int64(20) { // more than are remembered
		m.end = 201 + end
		a.Accepts(m, 0)
	}
	m.end = 200
	reads = 0
	if a.Accepts(m, 1) || reads != 200 {
		t.Errorf("%d reads", reads)
	}
	c.Release(a)
	if c.Use(nil) != nil || c[a.filter.Key()] != a {
		t.Error("released while it is in use")
	}
	c.Release(b)
	c.Release(other)
	c.Release(nil)
	if len(c) != 0 {
		t.Error("kept")
	}
	var all *sharedFilter
	if !all.Accepts(m, 1) {
		t.Error("without a filter")
	}
}
