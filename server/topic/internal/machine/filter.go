package machine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Limits of a filter.
const (
	maxClauses = 16
	maxValues  = 64
	maxName    = 255  // bytes
	maxValue   = 4096 // bytes
)

// ErrInvalidFilter is returned for a filter that cannot be compiled; the error that wraps it
// says which clause is wrong and why.
var ErrInvalidFilter = errors.New("invalid filter")

// Messages are what a filter checks.
type Messages interface {
	// Count returns how many there are.
	Count() int
	// Type returns the type of message i, empty if it has none.
	Type(i int) string
	// Header returns a header of message i, and whether it has it.
	Header(i int, name string) (string, bool)
}

// Filter is a compiled filter. It does not change and is safe for concurrent use.
type Filter struct {
	clauses []clause
	key     string
}

type clause struct {
	header   string // empty: the type
	operator topicv1.FilterClause_Operator
	values   []string // sorted, each once
}

// CompileFilter checks and compiles a filter. It returns nil for one that accepts everything:
// nil, or without clauses.
func CompileFilter(f *topicv1.Filter) (*Filter, error) {
	if len(f.GetClauses()) == 0 {
		return nil, nil
	}
	if len(f.Clauses) > maxClauses {
		return nil, fmt.Errorf("%w: %d clauses, at most %d are allowed", ErrInvalidFilter, len(f.Clauses), maxClauses)
	}
	keys := make([]string, 0, len(f.Clauses))
	out := &Filter{clauses: make([]clause, 0, len(f.Clauses))}
	for i, c := range f.Clauses {
		if err := checkFilter(c); err != nil {
			return nil, fmt.Errorf("%w: clause %d: %w", ErrInvalidFilter, i+1, err)
		}
		values := slices.Clone(c.Values)
		slices.Sort(values)
		compiled := clause{header: c.Header, operator: c.Operator, values: slices.Compact(values)}
		out.clauses = append(out.clauses, compiled)
		keys = append(keys, compiled.key())
	}
	slices.Sort(keys)
	out.key = strings.Join(slices.Compact(keys), "&")
	return out, nil
}

func checkFilter(c *topicv1.FilterClause) error {
	if len(c.GetHeader()) > maxName {
		return fmt.Errorf("the name of the header is longer than %d bytes", maxName)
	}
	switch c.GetOperator() {
	case topicv1.FilterClause_OPERATOR_IN, topicv1.FilterClause_OPERATOR_NOT_IN, topicv1.FilterClause_OPERATOR_PREFIX:
		if len(c.Values) == 0 {
			return errors.New("there are no values to compare with")
		}
	case topicv1.FilterClause_OPERATOR_EXISTS, topicv1.FilterClause_OPERATOR_MISSING:
		if len(c.Values) > 0 {
			return errors.New("there are values, but the operator compares with none")
		}
	default:
		return errors.New("the operator is not known")
	}
	if len(c.Values) > maxValues {
		return fmt.Errorf("%d values, at most %d are allowed", len(c.Values), maxValues)
	}
	for _, v := range c.Values {
		if len(v) > maxValue {
			return fmt.Errorf("a value is longer than %d bytes", maxValue)
		}
	}
	return nil
}

// key is the same for clauses that mean the same.
func (c *clause) key() string {
	b := strconv.AppendInt(nil, int64(c.operator), 10)
	b = strconv.AppendQuote(b, c.header)
	for _, v := range c.values {
		b = strconv.AppendQuote(b, v)
	}
	return string(b)
}

// Key is the same for filters of the same clauses in any order.
func (f *Filter) Key() string { return f.key }

// Accepts reports whether all clauses hold for message i.
func (f *Filter) Accepts(m Messages, i int) bool {
	for k := range f.clauses {
		if !f.clauses[k].holds(m, i) {
			return false
		}
	}
	return true
}

func (c *clause) holds(m Messages, i int) bool {
	var value string
	var ok bool
	if c.header == "" {
		value = m.Type(i)
		ok = value != ""
	} else {
		value, ok = m.Header(i, c.header)
	}
	switch c.operator {
	case topicv1.FilterClause_OPERATOR_EXISTS:
		return ok
	case topicv1.FilterClause_OPERATOR_MISSING:
		return !ok
	case topicv1.FilterClause_OPERATOR_PREFIX:
		return ok && slices.ContainsFunc(c.values, func(v string) bool { return strings.HasPrefix(value, v) })
	default:
		_, found := slices.BinarySearch(c.values, value)
		return (ok && found) == (c.operator == topicv1.FilterClause_OPERATOR_IN)
	}
}

// Bits has one bit for each message of a batch.
type Bits []uint64

// Has reports whether bit i is set.
func (b Bits) Has(i int) bool { return b[i>>6]&(1<<(i&63)) != 0 }

// Evaluate returns which of the messages are accepted. It uses the memory of bits.
func (f *Filter) Evaluate(m Messages, bits Bits) Bits {
	n := (m.Count() + 63) / 64
	bits = slices.Grow(bits[:0], n)[:n]
	clear(bits)
	for i := range m.Count() {
		if f.Accepts(m, i) {
			bits[i>>6] |= 1 << (i & 63)
		}
	}
	return bits
}
