package store

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxToken is the size of a ClientRequestToken.
const maxToken = 36

var defs = func() map[Table]Def {
	m := map[Table]Def{}
	for _, d := range Tables() {
		m[d.Name] = d
	}
	return m
}()

// Lookup returns the definition of a table.
func Lookup(t Table) (Def, bool) {
	d, ok := defs[t]
	return d, ok
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Validate checks a key against its table. Errors wrap ErrInvalid.
func (k Key) Validate() error {
	d, ok := defs[k.Table]
	if !ok {
		return invalid("unknown table %q", k.Table)
	}
	if err := validPart("partition key", k.PK); err != nil {
		return err
	}
	if !d.SortKey {
		if k.SK != "" {
			return invalid("table %s has no sort key", k.Table)
		}
		return nil
	}
	return validPart("sort key", k.SK)
}

func validPart(what, s string) error {
	if s == "" || len(s) > MaxKeyBytes || strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
		return invalid("%s %.40q must be 1 to %d bytes of UTF-8 without zero bytes", what, s, MaxKeyBytes)
	}
	return nil
}

func validAttr(name string, v Value) error {
	if name == "" || len(name) > 255 {
		return invalid("attribute name %.40q", name)
	}
	if v.Kind() == 0 {
		return invalid("attribute %s has no value", name)
	}
	if name == ExpiresAtField && v.Kind() != KindInt {
		return invalid("%s must be an integer", ExpiresAtField)
	}
	return nil
}

// Validate checks a write alone. Errors wrap ErrInvalid.
func (w *Write) Validate() error {
	if err := w.Key.Validate(); err != nil {
		return err
	}
	switch w.Op {
	case OpPut:
		if w.Item == nil {
			return invalid("put of %s without an item", w.Key)
		}
		for i, a := range w.Item {
			if err := validAttr(a.Name, a.Value); err != nil {
				return err
			}
			if i > 0 && w.Item[i-1].Name >= a.Name {
				return invalid("attributes of %s are not distinct and sorted", w.Key)
			}
		}
		if w.Item.Size() > MaxItemBytes {
			return invalid("%s has more than %d bytes", w.Key, MaxItemBytes)
		}
	case OpUpdate:
		if err := w.Update.validate(); err != nil {
			return err
		}
	case OpDelete:
	case OpCheck:
		if len(w.Cond) == 0 {
			return invalid("check of %s without a condition", w.Key)
		}
	default:
		return invalid("unknown kind of write %d", w.Op)
	}
	if len(w.Cond) > 0 && w.Name == "" {
		return invalid("condition on %s without a name", w.Key)
	}
	for _, t := range w.Cond {
		switch t.Test {
		case TestExists, TestAbsent, TestNoAttr:
		case TestEqual, TestNotEqual, TestLess, TestGreater:
			if t.Value.Kind() == 0 {
				return invalid("condition on %s without a value", t.Attr)
			}
		default:
			return invalid("unknown test %d", t.Test)
		}
	}
	return nil
}

func (u Update) validate() error {
	names := make([]string, 0, 16)
	add := func(name string) error {
		for _, n := range names {
			if n == name {
				return invalid("update names %s twice", name)
			}
		}
		names = append(names, name)
		return nil
	}
	for _, a := range u.Set {
		if err := validAttr(a.Name, a.Value); err != nil {
			return err
		}
		if err := add(a.Name); err != nil {
			return err
		}
	}
	for _, n := range u.Remove {
		if err := add(n); err != nil {
			return err
		}
	}
	for _, a := range u.Add {
		if err := add(a.Name); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return invalid("empty update")
	}
	return nil
}

func (w *Write) size() int {
	n := len(w.Key.PK) + len(w.Key.SK) + w.Item.Size()
	for _, a := range w.Update.Set {
		n += len(a.Name) + a.Value.size()
	}
	return n
}

// Validate checks a plan against the limits of the contract. Errors wrap
// ErrInvalid.
func (p *Plan) Validate() error {
	if len(p.Writes) == 0 || len(p.Writes) > MaxPlanWrites {
		return invalid("a plan has 1 to %d writes, not %d", MaxPlanWrites, len(p.Writes))
	}
	if len(p.Token) > maxToken {
		return invalid("token is longer than %d bytes", maxToken)
	}
	return validWrites(p.Writes)
}

// ValidateBatch checks the writes of a BatchWrite. Errors wrap ErrInvalid.
func ValidateBatch(writes []Write) error {
	if len(writes) == 0 || len(writes) > MaxBatchWrite {
		return invalid("a batch has 1 to %d writes, not %d", MaxBatchWrite, len(writes))
	}
	for i := range writes {
		if op := writes[i].Op; op != OpPut && op != OpDelete {
			return invalid("a batch has puts and deletes only")
		}
		if len(writes[i].Cond) > 0 {
			return invalid("a batch has no conditions")
		}
	}
	return validWrites(writes)
}

func validWrites(writes []Write) error {
	bytes := 0
	for i := range writes {
		if err := writes[i].Validate(); err != nil {
			return err
		}
		bytes += writes[i].size()
	}
	if bytes > MaxPlanBytes {
		return invalid("%d bytes are more than %d", bytes, MaxPlanBytes)
	}
	if len(writes) <= 16 { // most plans: comparing beats hashing
		for i := range writes {
			for j := range i {
				if writes[i].Key == writes[j].Key {
					return invalid("item %s twice", writes[i].Key)
				}
			}
		}
		return nil
	}
	seen := make(map[Key]struct{}, len(writes))
	for i := range writes {
		if _, ok := seen[writes[i].Key]; ok {
			return invalid("item %s twice", writes[i].Key)
		}
		seen[writes[i].Key] = struct{}{}
	}
	return nil
}

// ValidateKeys checks the keys of a BatchGet. Errors wrap ErrInvalid.
func ValidateKeys(keys []Key) error {
	if len(keys) == 0 || len(keys) > MaxBatchGet {
		return invalid("a batch has 1 to %d keys, not %d", MaxBatchGet, len(keys))
	}
	seen := make(map[Key]struct{}, len(keys))
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return err
		}
		if _, ok := seen[k]; ok {
			return invalid("key %s twice", k)
		}
		seen[k] = struct{}{}
	}
	return nil
}

// Validate checks a query. Errors wrap ErrInvalid.
func (q *Query) Validate() error {
	d, ok := defs[q.Table]
	if !ok || !d.SortKey {
		return invalid("table %q cannot be queried", q.Table)
	}
	if err := validPart("partition key", q.PK); err != nil {
		return err
	}
	for _, bound := range []string{q.From, q.To, q.Cursor} {
		if bound != "" {
			if err := validPart("bound", bound); err != nil {
				return err
			}
		}
	}
	return nil
}

// Validate checks a scan. Errors wrap ErrInvalid.
func (s *Scan) Validate() error {
	if _, ok := defs[s.Table]; !ok {
		return invalid("unknown table %q", s.Table)
	}
	if s.Segments < 1 || s.Segments > MaxSegments || s.Segment < 0 || s.Segment >= s.Segments {
		return invalid("segment %d of %d", s.Segment, s.Segments)
	}
	return nil
}

// Segment is the segment of a partition key among n, the same on every engine
// that divides a table itself.
func Segment(pk string, n int) int {
	h := uint32(2166136261) // FNV-1a
	for i := range len(pk) {
		h = (h ^ uint32(pk[i])) * 16777619
	}
	return int(h % uint32(n))
}

// Expired reports whether an item has expired at a time in unix seconds.
func Expired(it Item, now int64) bool {
	v := it.Get(ExpiresAtField)
	return v.Kind() == KindInt && v.Int64() <= now
}
