package dynamo

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/parley-chat/parley/server/store"
)

const maxExpression = 4096 // bytes of one expression

// request is a write in DynamoDB's terms.
type request struct {
	table     string
	op        store.Op
	key, item attributes // item of a put, key of all others
	cond      *string    // nil: none
	update    *string
	names     map[string]string // nil: none
	values    attributes
}

// failed says what the answer returns of an item whose condition failed.
func (f *request) failed() types.ReturnValuesOnConditionCheckFailure {
	if f.cond == nil {
		return ""
	}
	return types.ReturnValuesOnConditionCheckFailureAllOld
}

// expression collects the names and values of a write's expressions.
type expression struct {
	sc           *schema
	names        map[string]string
	values       attributes
	placeholders map[string]string // of columns
}

func (e *expression) column(column string) string {
	if p, ok := e.placeholders[column]; ok {
		return p
	}
	if e.names == nil {
		e.names, e.placeholders = map[string]string{}, map[string]string{}
	}
	p := "#" + strconv.Itoa(len(e.names))
	e.names[p], e.placeholders[column] = column, p
	return p
}

func (e *expression) attr(name string) string { return e.column(e.sc.column(name)) }

func (e *expression) value(v types.AttributeValue) string {
	if e.values == nil {
		e.values = attributes{}
	}
	p := ":" + strconv.Itoa(len(e.values))
	e.values[p] = v
	return p
}

// term is the expression of a term. In DynamoDB every comparison with a missing attribute,
// and with one of another type, is false.
func (e *expression) term(t store.Term) string {
	switch t.Test {
	case store.TestExists:
		return "attribute_exists(" + e.column(e.sc.pk) + ")"
	case store.TestAbsent:
		return "attribute_not_exists(" + e.column(e.sc.pk) + ")"
	case store.TestNoAttr:
		return "attribute_not_exists(" + e.attr(t.Attr) + ")"
	case store.TestNotEqual:
		return "NOT " + e.attr(t.Attr) + "=" + e.value(encode(t.Value))
	case store.TestLess:
		return e.attr(t.Attr) + "<" + e.value(encode(t.Value))
	case store.TestGreater:
		return e.attr(t.Attr) + ">" + e.value(encode(t.Value))
	case store.TestAtMost:
		return e.attr(t.Attr) + "<=" + e.value(encode(t.Value))
	}
	return e.attr(t.Attr) + "=" + e.value(encode(t.Value))
}

// guard is the condition under which an increment does not fail.
func (e *expression) guard(inc store.Increment) string {
	a := e.attr(inc.Name)
	at, bound := "<=", math.MaxInt64-max(inc.N, 0)
	if inc.N < 0 {
		at, bound = ">=", math.MinInt64-inc.N
	}
	return "(attribute_not_exists(" + a + ")OR " + a + at + e.value(number(bound)) + ")"
}

// condition is the expression of a write's condition on an item that may have expired, at
// now in unix seconds. An update also requires that the item has not expired, or does not
// exist, and that its increments do not fail.
func (e *expression) condition(w *store.Write, now int64) string {
	var all []string
	for _, t := range w.Cond {
		all = append(all, e.term(t))
	}
	if w.Op == store.OpUpdate {
		for _, inc := range w.Update.Add {
			all = append(all, e.guard(inc))
		}
	}
	if !e.sc.def.TTL || (len(w.Cond) == 0 && w.Op != store.OpUpdate) {
		return strings.Join(all, " AND ")
	}
	at, t := e.attr(store.ExpiresAtField), e.value(number(now))
	if w.Op != store.OpUpdate && store.Evaluate(w.Cond, nil) {
		return at + "<=" + t + " OR(" + strings.Join(all, " AND ") + ")"
	}
	return strings.Join(append(all, "(attribute_not_exists("+at+")OR "+at+">"+t+")"), " AND ")
}

func (e *expression) update(u store.Update) string {
	var b strings.Builder
	clause := func(keyword string, n int, each func(i int)) {
		for i := range n {
			if i == 0 && b.Len() > 0 {
				b.WriteByte(' ')
			}
			if i == 0 {
				b.WriteString(keyword)
			} else {
				b.WriteByte(',')
			}
			each(i)
		}
	}
	clause("SET ", len(u.Set), func(i int) {
		b.WriteString(e.attr(u.Set[i].Name) + "=" + e.value(encode(u.Set[i].Value)))
	})
	clause("REMOVE ", len(u.Remove), func(i int) { b.WriteString(e.attr(u.Remove[i])) })
	clause("ADD ", len(u.Add), func(i int) { b.WriteString(e.attr(u.Add[i].Name) + " " + e.value(number(u.Add[i].N))) })
	return b.String()
}

// request translates a write to DynamoDB's terms. With fresh, an update of an expired item
// becomes a put of the item that the update makes of nothing.
func (sc *schema) request(w *store.Write, now int64, fresh bool) (request, error) {
	e := &expression{sc: sc}
	f := request{table: sc.name, op: w.Op}
	cond := ""
	switch {
	case w.Op == store.OpPut:
		f.item = sc.encode(w.Key, w.Item)
		cond = e.condition(w, now)
	case fresh:
		next, err := w.Next(nil)
		if err != nil {
			return f, err
		}
		f.op, f.item = store.OpPut, sc.encode(w.Key, next)
		cond = e.attr(store.ExpiresAtField) + "<=" + e.value(number(now))
	default:
		f.key = sc.key(w.Key)
		cond = e.condition(w, now)
	}
	if f.op == store.OpUpdate {
		u := e.update(w.Update)
		f.update = &u
	}
	if cond != "" {
		f.cond = &cond
	}
	if len(cond) > maxExpression {
		return f, fmt.Errorf("%w: the condition on %s is too long", store.ErrInvalid, w.Key)
	}
	f.names, f.values = e.names, e.values
	return f, nil
}
