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

// form is a write in DynamoDB's terms.
type form struct {
	table     string
	op        store.Op
	key, item attributes // item of a put, key of all others
	cond      *string    // nil: none
	update    *string
	names     map[string]string // nil: none
	values    attributes
}

// failed is what the answer says of an item whose condition failed.
func (f *form) failed() types.ReturnValuesOnConditionCheckFailure {
	if f.cond == nil {
		return ""
	}
	return types.ReturnValuesOnConditionCheckFailureAllOld
}

// expression collects the names and values of a write's expressions.
type expression struct {
	sh     *shape
	names  map[string]string
	values attributes
	known  map[string]string // placeholders of columns
}

func (e *expression) column(column string) string {
	if p, ok := e.known[column]; ok {
		return p
	}
	if e.names == nil {
		e.names, e.known = map[string]string{}, map[string]string{}
	}
	p := "#" + strconv.Itoa(len(e.names))
	e.names[p], e.known[column] = column, p
	return p
}

func (e *expression) attr(name string) string { return e.column(e.sh.column(name)) }

func (e *expression) value(v types.AttributeValue) string {
	if e.values == nil {
		e.values = attributes{}
	}
	p := ":" + strconv.Itoa(len(e.values))
	e.values[p] = v
	return p
}

// term says what a term says. DynamoDB finds every comparison with a missing
// attribute, and with one of another type, false.
func (e *expression) term(t store.Term) string {
	switch t.Test {
	case store.TestExists:
		return "attribute_exists(" + e.column(e.sh.pk) + ")"
	case store.TestAbsent:
		return "attribute_not_exists(" + e.column(e.sh.pk) + ")"
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

// guard says that an increment can be made.
func (e *expression) guard(inc store.Increment) string {
	a := e.attr(inc.Name)
	at, bound := "<=", int64(math.MaxInt64-max(inc.N, 0))
	if inc.N < 0 {
		at, bound = ">=", math.MinInt64-inc.N
	}
	return "(attribute_not_exists(" + a + ")OR " + a + at + e.value(number(bound)) + ")"
}

// condition says what a write's condition says of an item that may have expired, at
// now in unix seconds. An update wants, besides, an item that has not expired, or
// none, and increments that can be made.
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
	if !e.sh.def.TTL || (len(w.Cond) == 0 && w.Op != store.OpUpdate) {
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
	clause("SET ", len(u.Set), func(i int) { b.WriteString(e.attr(u.Set[i].Name) + "=" + e.value(encode(u.Set[i].Value))) })
	clause("REMOVE ", len(u.Remove), func(i int) { b.WriteString(e.attr(u.Remove[i])) })
	clause("ADD ", len(u.Add), func(i int) { b.WriteString(e.attr(u.Add[i].Name) + " " + e.value(number(u.Add[i].N))) })
	return b.String()
}

// form puts a write in DynamoDB's terms. An update of an item that has expired, if
// fresh, is a put of what it makes of nothing.
func (sh *shape) form(w *store.Write, now int64, fresh bool) (form, error) {
	e := &expression{sh: sh}
	f := form{table: sh.name, op: w.Op}
	cond := ""
	switch {
	case w.Op == store.OpPut:
		f.item = sh.encode(w.Key, w.Item)
		cond = e.condition(w, now)
	case fresh:
		next, err := w.Next(nil)
		if err != nil {
			return f, err
		}
		f.op, f.item = store.OpPut, sh.encode(w.Key, next)
		cond = e.attr(store.ExpiresAtField) + "<=" + e.value(number(now))
	default:
		f.key = sh.key(w.Key)
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
