package differential

import (
	"bytes"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A difference is a value that was read as another one.
type difference struct {
	at       protoreflect.FieldDescriptor
	detail   string
	presence bool // only unset and zero are mixed up
}

// A comparison of what was written with what was read, field by field, by name.
type comparison struct {
	direction
	json        bool
	differences []difference
}

func (c *comparison) differ(at protoreflect.FieldDescriptor, wrote, read string) {
	c.differences = append(c.differences, difference{at: at, detail: clip(wrote) + " read as " + clip(read)})
}

func (c *comparison) messages(w, r protoreflect.Message) {
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		rf := fields.Get(i)
		wf := w.Descriptor().Fields().ByName(rf.Name())
		switch {
		case wf == nil && r.Has(rf):
			c.differ(rf, "nothing", text(r.Get(rf), rf))
		case wf != nil:
			c.field(w, r, wf, rf)
		}
	}
}

func (c *comparison) field(w, r protoreflect.Message, wf, rf protoreflect.FieldDescriptor) {
	if !w.Has(wf) && !r.Has(rf) {
		if single(wf) && single(rf) && scalar(wf) && scalar(rf) && !c.equal(w.Get(wf), r.Get(rf), wf, rf) {
			c.differ(rf, "default "+text(w.Get(wf), wf), text(r.Get(rf), rf))
		}
		return
	}
	switch {
	case wf.IsMap() && rf.IsMap():
		c.maps(w.Get(wf).Map(), r.Get(rf).Map(), wf, rf)
	case wf.IsList() && rf.IsList():
		c.lists(w.Get(wf).List(), r.Get(rf).List(), wf, rf)
	case !single(wf) || !single(rf) || (wf.Message() == nil) != (rf.Message() == nil):
		c.differ(rf, text(w.Get(wf), wf), text(r.Get(rf), rf))
	case wf.Message() != nil:
		if w.Has(wf) != r.Has(rf) {
			c.differ(rf, set(w.Has(wf)), set(r.Has(rf)))
			return
		}
		c.messages(w.Get(wf).Message(), r.Get(rf).Message())
	case c.newer(w.Get(wf), wf, rf) && !r.Has(rf):
	case !c.equal(w.Get(wf), r.Get(rf), wf, rf):
		c.differ(rf, text(w.Get(wf), wf), text(r.Get(rf), rf))
	case w.Has(wf) != r.Has(rf):
		// Equal values, so that one side does not distinguish unset from zero, or both do and
		// one of them lost it.
		c.differences = append(c.differences, difference{
			at: rf, detail: set(w.Has(wf)) + " read as " + set(r.Has(rf)), presence: !wf.HasPresence() || !rf.HasPresence(),
		})
	}
}

func (c *comparison) lists(w, r protoreflect.List, wf, rf protoreflect.FieldDescriptor) {
	var kept []protoreflect.Value
	for i := range w.Len() {
		if !c.json || !c.newer(w.Get(i), wf, rf) {
			kept = append(kept, w.Get(i))
		}
	}
	if len(kept) != r.Len() {
		c.differ(rf, fmt.Sprint(len(kept), " elements"), fmt.Sprint(r.Len()))
		return
	}
	for i, v := range kept {
		if !c.element(v, r.Get(i), wf, rf) {
			c.differ(rf, text(v, wf), text(r.Get(i), rf))
			return
		}
	}
}

func (c *comparison) maps(w, r protoreflect.Map, wf, rf protoreflect.FieldDescriptor) {
	read := map[string]protoreflect.Value{}
	for k, v := range r.Range {
		read[k.String()] = v
	}
	var keys []string
	wrote := map[string]protoreflect.Value{}
	for k, v := range w.Range {
		keys = append(keys, k.String())
		wrote[k.String()] = v
	}
	slices.Sort(keys) // which difference is named must not vary
	for _, k := range keys {
		v := wrote[k]
		there, ok := read[k]
		delete(read, k)
		switch {
		case !ok && c.json && c.newer(v, wf.MapValue(), rf.MapValue()):
		case !ok:
			c.differ(rf, "key "+k, "nothing")
			return
		case !c.element(v, there, wf.MapValue(), rf.MapValue()):
			c.differ(rf, text(v, wf.MapValue()), text(there, rf.MapValue()))
			return
		}
	}
	if len(read) > 0 {
		c.differ(rf, "nothing", fmt.Sprint(len(read), " more keys"))
	}
}

// element compares elements of lists and maps; differences inside of messages are
// recorded at their fields.
func (c *comparison) element(w, r protoreflect.Value, wf, rf protoreflect.FieldDescriptor) bool {
	if wf.Message() == nil || rf.Message() == nil {
		return wf.Message() == nil && rf.Message() == nil && c.equal(w, r, wf, rf)
	}
	c.messages(w.Message(), r.Message())
	return true
}

// newer says that a new writer wrote an enum value that the old reader lacks, which
// readers show as unknown, and in JSON as unset.
func (c *comparison) newer(w protoreflect.Value, wf, rf protoreflect.FieldDescriptor) bool {
	if wf.Enum() == nil || rf.Enum() == nil || c.newReads {
		return false
	}
	v := wf.Enum().Values().ByNumber(w.Enum())
	return v != nil && rf.Enum().Values().ByName(v.Name()) == nil && rf.Enum().Values().ByNumber(v.Number()) == nil
}

// equal compares scalars by what they mean: numbers by value, enum values by name.
func (c *comparison) equal(w, r protoreflect.Value, wf, rf protoreflect.FieldDescriptor) bool {
	switch {
	case wf.Enum() != nil && rf.Enum() != nil:
		return c.sameEnumValue(w.Enum(), r.Enum(), wf.Enum(), rf.Enum())
	case wf.Enum() != nil || rf.Enum() != nil:
		return fmt.Sprint(w.Interface()) == fmt.Sprint(r.Interface())
	}
	switch x := w.Interface().(type) {
	case float32:
		return sameFloat(float64(x), r)
	case float64:
		return sameFloat(x, r)
	case []byte:
		switch y := r.Interface().(type) {
		case []byte:
			return bytes.Equal(x, y)
		case string:
			return string(x) == y
		}
		return false
	case string:
		switch y := r.Interface().(type) {
		case string:
			return x == y
		case []byte:
			return x == string(y)
		}
		return false
	}
	return fmt.Sprint(w.Interface()) == fmt.Sprint(r.Interface())
}

func sameFloat(x float64, r protoreflect.Value) bool {
	var y float64
	switch v := r.Interface().(type) {
	case float32:
		y = float64(v)
	case float64:
		y = v
	default:
		return false
	}
	return x == y || math.IsNaN(x) && math.IsNaN(y)
}

func (c *comparison) sameEnumValue(w, r protoreflect.EnumNumber, we, re protoreflect.EnumDescriptor) bool {
	wrote := we.Values().ByNumber(w)
	switch {
	case wrote == nil: // unknown to the writer too: passed on as a number
		return w == r
	case !c.newReads && re.Values().ByName(wrote.Name()) == nil && re.Values().ByNumber(w) == nil:
		return w == r // newer than the reader
	}
	for i := range we.Values().Len() {
		if v := we.Values().Get(i); v.Number() == w {
			if there := re.Values().ByName(v.Name()); there != nil && there.Number() == r {
				return true
			}
		}
	}
	return false
}

func single(f protoreflect.FieldDescriptor) bool { return !f.IsList() && !f.IsMap() }
func scalar(f protoreflect.FieldDescriptor) bool { return f.Message() == nil }

func set(is bool) string {
	if is {
		return "set"
	}
	return "unset"
}

func text(v protoreflect.Value, f protoreflect.FieldDescriptor) string {
	switch x := v.Interface().(type) {
	case protoreflect.EnumNumber:
		if known := f.Enum().Values().ByNumber(x); known != nil {
			return string(known.Name())
		}
	case string:
		return fmt.Sprintf("%q", clip(x))
	case []byte:
		return fmt.Sprintf("%q", clip(string(x)))
	case protoreflect.Message:
		return "a message"
	case protoreflect.List:
		return fmt.Sprint(x.Len(), " elements")
	case protoreflect.Map:
		return fmt.Sprint(x.Len(), " pairs")
	}
	return fmt.Sprint(v.Interface())
}
