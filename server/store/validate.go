package store

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits that concern validation alone.
const (
	maxToken    = 36  // bytes of a ClientRequestToken
	maxName     = 255 // bytes of an attribute name
	maxTerms    = 100 // terms of a condition, and attributes of an update
	keyOverhead = 64  // what the names of the key's attributes add to an item, at most
)

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

func validName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) {
		return invalid("attribute name %.40q must be 1 to %d bytes of UTF-8", name, maxName)
	}
	return nil
}

func validAttr(t Table, name string, v Value) error {
	if err := validName(name); err != nil {
		return err
	}
	if v.Kind() == 0 {
		return invalid("attribute %s has no value", name)
	}
	if !v.validText() {
		return invalid("attribute %s is not UTF-8", name)
	}
	if name == ExpiresAtField {
		if v.Kind() != KindInt {
			return invalid("%s must be an integer", ExpiresAtField)
		}
		return validExpiry(t)
	}
	return nil
}

func validExpiry(t Table) error {
	if !defs[t].TTL {
		return invalid("items of table %s do not expire", t)
	}
	return nil
}

// validText reports whether what must be text is UTF-8; engines may replace bytes
// that are not, and that would be noticed on reading only.
func (v Value) validText() bool {
	if v.kind == KindString && !utf8.ValidString(v.str) {
		return false
	}
	for _, s := range v.strings() {
		if !utf8.ValidString(s) {
			return false
		}
	}
	return true
}

// Validate checks a write alone. Errors wrap ErrInvalid.
func (w *Write) Validate() error {
	if err := w.Key.Validate(); err != nil {
		return err
	}
	if w.Op != OpPut && w.Item != nil {
		return invalid("an item for %s, which is not put", w.Key)
	}
	if u := &w.Update; w.Op != OpUpdate && len(u.Set)+len(u.Remove)+len(u.Add) > 0 {
		return invalid("an update for %s, which is not updated", w.Key)
	}
	if w.Fresh && w.Op != OpPut {
		return invalid("a fresh key of %s, which is not put", w.Key)
	}
	switch w.Op {
	case OpPut:
		if err := w.validItem(); err != nil {
			return err
		}
	case OpUpdate:
		if err := w.Update.validate(w.Key.Table); err != nil {
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
	return w.Cond.validate(w)
}

func (w *Write) validItem() error {
	if w.Item == nil {
		return invalid("put of %s without an item", w.Key)
	}
	for i, a := range w.Item {
		if err := validAttr(w.Key.Table, a.Name, a.Value); err != nil {
			return err
		}
		if i > 0 && w.Item[i-1].Name >= a.Name {
			return invalid("attributes of %s are not distinct and sorted", w.Key)
		}
	}
	if itemSize(w.Key, w.Item) > MaxItemBytes {
		return invalid("%s has more than %d bytes", w.Key, MaxItemBytes)
	}
	return nil
}

func (c Condition) validate(w *Write) error {
	if len(c) > 0 && w.Name == "" {
		return invalid("condition on %s without a name", w.Key)
	}
	if len(c) > maxTerms {
		return invalid("condition on %s with %d terms", w.Key, len(c))
	}
	for _, t := range c {
		kind := t.Value.Kind()
		switch t.Test {
		case TestExists, TestAbsent:
			continue
		case TestNoAttr:
		case TestEqual, TestNotEqual:
			if kind == 0 || !t.Value.validText() {
				return invalid("condition on %s without a valid value", t.Attr)
			}
		case TestLess, TestGreater, TestAtMost:
			if kind != KindInt && kind != KindString || !t.Value.validText() {
				return invalid("order on %s with neither an integer nor a string", t.Attr)
			}
		default:
			return invalid("unknown test %d", t.Test)
		}
		if err := validName(t.Attr); err != nil {
			return err
		}
	}
	return nil
}

func (u Update) validate(t Table) error {
	n := len(u.Set) + len(u.Remove) + len(u.Add)
	if n == 0 {
		return invalid("empty update")
	}
	if n > maxTerms {
		return invalid("update of %d attributes", n)
	}
	names := make([]string, 0, 16)
	add := func(name string) error {
		for _, n := range names {
			if n == name {
				return invalid("update names %s twice", name)
			}
		}
		names = append(names, name)
		return validName(name)
	}
	for _, a := range u.Set {
		if err := validAttr(t, a.Name, a.Value); err != nil {
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
		if a.Name == ExpiresAtField {
			if err := validExpiry(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// itemSize is the size that counts for the limit of an item: the key counts too.
func itemSize(k Key, it Item) int { return len(k.PK) + len(k.SK) + keyOverhead + it.Size() }

func (w *Write) size() int {
	n := itemSize(w.Key, w.Item)
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
	if s.Cursor == "" {
		return nil
	}
	_, err := s.After()
	return err
}

// ScanCursor is the cursor after a row.
func ScanCursor(k Key) string { return k.PK + "\x00" + k.SK }

// After is the key of the last row before the cursor. Errors wrap ErrInvalid.
func (s *Scan) After() (Key, error) {
	pk, sk, ok := strings.Cut(s.Cursor, "\x00")
	k := Key{Table: s.Table, PK: pk, SK: sk}
	if !ok || k.Validate() != nil {
		return Key{}, invalid("cursor %.40q", s.Cursor)
	}
	return k, nil
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
