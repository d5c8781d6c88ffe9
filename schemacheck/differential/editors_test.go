package differential_test

import (
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (e *editor) editMessage(syntax string, m *messageProto) {
	if len(m.Field) == 0 {
		return
	}
	i := e.IntN(len(m.Field))
	f, other := m.Field[i], m.Field[e.IntN(len(m.Field))]
	free := int32(1)
	for _, f := range m.Field {
		free = max(free, f.GetNumber()+1)
	}
	free += int32(e.IntN(2))
	remove := func() {
		m.Field = slices.Delete(m.Field, i, i+1)
		if f.OneofIndex != nil && !f.GetProto3Optional() && !slices.ContainsFunc(m.Field, func(o *fieldProto) bool {
			return o.OneofIndex != nil && !o.GetProto3Optional()
		}) {
			m.OneofDecl = nil
		}
	}
	edits := []struct {
		name string
		do   func()
	}{
		{"add field", func() { m.Field = append(m.Field, e.field(syntax, free, true)) }},
		{"add optional field", func() {
			added := e.field(syntax, free, true)
			if added.GetLabel() == optional && syntax == "proto3" {
				added.Proto3Optional = proto.Bool(true)
			}
			m.Field = append(m.Field, added)
		}},
		{"remove and reserve", func() {
			remove()
			m.ReservedName = append(m.ReservedName, f.GetName())
			m.ReservedRange = append(m.ReservedRange,
				&descriptorpb.DescriptorProto_ReservedRange{Start: f.Number, End: proto.Int32(f.GetNumber() + 1)})
		}},
		{"remove", remove},
		{"type", func() { e.setType(f, true); clearRules(f) }},
		{"presence", func() {
			switch {
			case f.OneofIndex != nil && !f.GetProto3Optional():
			case syntax == "proto3" && f.GetLabel() == optional:
				if f.GetProto3Optional() {
					f.Proto3Optional, f.OneofIndex = nil, nil
				} else {
					f.Proto3Optional = proto.Bool(true)
				}
			case syntax == "editions":
				features(f).FieldPresence = pick(e, descriptorpb.FeatureSet_IMPLICIT, descriptorpb.FeatureSet_EXPLICIT,
					descriptorpb.FeatureSet_LEGACY_REQUIRED).Enum()
			case syntax == "proto2" && f.GetLabel() != repeated:
				f.Label = pick(e, optional, required).Enum()
			}
		}},
		{"cardinality", func() {
			if f.OneofIndex == nil || f.GetProto3Optional() {
				f.Proto3Optional, f.OneofIndex = nil, nil
				if f.GetLabel() == repeated {
					f.Label = optional.Enum()
				} else {
					f.Label = repeated.Enum()
				}
				clearRules(f)
			}
		}},
		{"rename", func() { f.Name = proto.String(f.GetName() + "x") }},
		{"number", func() { f.Number = proto.Int32(free) }},
		{"json name", func() { f.JsonName = proto.String(f.GetName() + "j") }},
		{"swap names", func() { f.Name, other.Name = other.Name, f.Name }},
		{"swap numbers", func() { f.Number, other.Number = other.Number, f.Number }},
		{"order", func() { m.Field[0], m.Field[i] = m.Field[i], m.Field[0] }},
		{"deprecated", func() { options(f).Deprecated = proto.Bool(true) }},
		{"packed", func() { e.packed(syntax, f) }},
		{"utf8", func() {
			if syntax == "editions" && f.GetType() == scalars[0] {
				features(f).Utf8Validation = descriptorpb.FeatureSet_NONE.Enum()
			}
		}},
		{"encoding", func() {
			if syntax == "editions" && f.GetType() == tMessage {
				features(f).MessageEncoding = descriptorpb.FeatureSet_DELIMITED.Enum()
			}
		}},
		{"oneof", func() { e.oneof(m, f) }},
		{"map", func() {
			if len(m.NestedType) == 0 {
				e.addMap(m, free)
			} else if entry := m.NestedType[0].Field; e.chance(50) {
				entry[0].Type = pick(e, mapKeys...).Enum()
			} else {
				e.setType(entry[1], true)
			}
		}},
		{"map rule", func() {
			for _, f := range m.Field {
				if f.GetTypeName() == mapType(m) {
					e.mapRule(f)
				}
			}
		}},
		{"new rule", func() { e.rule(f) }},
		{"new rule", func() { e.rule(f) }},
		{"nudge rule", func() { e.nudge(f) }},
		{"nudge rule", func() { e.nudge(f) }},
		{"no rule", func() { clearRules(f) }},
		{"cel", func() {
			m.Options = &descriptorpb.MessageOptions{}
			proto.SetExtension(m.Options, validate.E_Message, &validate.MessageRules{Cel: []*validate.Rule{{
				Id: proto.String("x"), Expression: proto.String(pick(e, "true", "has(this."+f.GetName()+")",
					"!has(this."+f.GetName()+")")),
			}}})
		}},
	}
	edit := pick(e, edits...)
	e.done = append(e.done, edit.name+" "+m.GetName()+"."+f.GetName())
	edit.do()
}

var mapKeys = []descriptorpb.FieldDescriptorProto_Type{
	descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_INT32,
	descriptorpb.FieldDescriptorProto_TYPE_SINT64,
	descriptorpb.FieldDescriptorProto_TYPE_INT64, descriptorpb.FieldDescriptorProto_TYPE_UINT32,
	descriptorpb.FieldDescriptorProto_TYPE_BOOL,
}

func mapType(m *messageProto) string { return ".t.v1." + m.GetName() + ".MapFEntry" }

// addMap adds a field map_f with the entry type that descriptors have for maps.
func (e *editor) addMap(m *messageProto, n int32) {
	if len(m.NestedType) > 0 {
		return
	}
	entry := &messageProto{Name: proto.String("MapFEntry"),
		Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)}}
	for i, name := range []string{"key", "value"} {
		entry.Field = append(entry.Field,
			&fieldProto{Name: proto.String(name), Number: proto.Int32(int32(i + 1)), Label: optional.Enum(),
				Type: pick(e, mapKeys...).Enum()})
	}
	e.setType(entry.Field[1], true)
	f := &fieldProto{Name: proto.String("map_f"), Number: proto.Int32(n), Label: repeated.Enum(), Type: tMessage.Enum(),
		TypeName: proto.String(mapType(m))}
	m.NestedType = append(m.NestedType, entry)
	m.Field = append(m.Field, f)
	if e.chance(50) {
		e.mapRule(f)
	}
}

func (e *editor) mapRule(f *fieldProto) {
	r := &validate.MapRules{}
	if e.chance(50) {
		r.MinPairs = proto.Uint64(uint64(e.IntN(3)))
	}
	if e.chance(50) {
		r.MaxPairs = proto.Uint64(uint64(2 + e.IntN(4)))
	}
	proto.SetExtension(options(f), validate.E_Field, &validate.FieldRules{Type: &validate.FieldRules_Map{Map: r}})
}

func (e *editor) packed(syntax string, f *fieldProto) {
	if f.GetLabel() != repeated || f.GetType() == tMessage || f.GetType() == scalars[0] ||
		f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_BYTES {
		return
	}
	if syntax == "editions" {
		features(f).RepeatedFieldEncoding = descriptorpb.FeatureSet_EXPANDED.Enum()
	} else {
		options(f).Packed = proto.Bool(e.chance(50))
	}
}

// oneof moves a field into the oneof, or out of it, or makes one.
func (e *editor) oneof(m *messageProto, f *fieldProto) {
	if f.GetLabel() != optional {
		return
	}
	if f.OneofIndex != nil && !f.GetProto3Optional() {
		if slices.ContainsFunc(m.Field,
			func(o *fieldProto) bool { return o != f && o.OneofIndex != nil && !o.GetProto3Optional() }) {
			f.OneofIndex = nil
		}
		return
	}
	if len(m.OneofDecl) == 0 || m.OneofDecl[0].GetName()[0] == '_' {
		m.OneofDecl = []*descriptorpb.OneofDescriptorProto{{Name: proto.String("choice")}}
	}
	if f.Options != nil && f.Options.Features != nil {
		f.Options.Features.FieldPresence = nil
	}
	f.Proto3Optional, f.OneofIndex = nil, proto.Int32(0)
}

func (e *editor) editEnum(k *enumProto) {
	i := e.IntN(len(k.Value))
	v := k.Value[i]
	value := func(name string, n int32) *descriptorpb.EnumValueDescriptorProto {
		return &descriptorpb.EnumValueDescriptorProto{Name: proto.String(name), Number: proto.Int32(n)}
	}
	name := pick(e, "add", "add", "remove", "rename", "number", "swap", "alias", "alias first", "order")
	e.done = append(e.done, "enum "+name+" "+v.GetName())
	switch name {
	case "add":
		k.Value = append(k.Value, value("KIND_NEW", 17))
	case "remove":
		if i > 0 {
			k.Value = slices.Delete(k.Value, i, i+1)
		}
	case "rename":
		v.Name = proto.String(v.GetName() + "X")
	case "number":
		if i > 0 {
			v.Number = proto.Int32(v.GetNumber() + 20)
		}
	case "swap":
		if i > 1 {
			v.Number, k.Value[1].Number = k.Value[1].Number, v.Number
		}
	case "alias":
		k.Options = &descriptorpb.EnumOptions{AllowAlias: proto.Bool(true)}
		k.Value = append(k.Value, value("KIND_ALIAS", v.GetNumber()))
	case "alias first":
		k.Options = &descriptorpb.EnumOptions{AllowAlias: proto.Bool(true)}
		k.Value = slices.Insert(k.Value, i, value("KIND_ALIAS", v.GetNumber()))
	case "order":
		if i > 1 {
			k.Value[1], k.Value[i] = k.Value[i], k.Value[1]
		}
	}
}

func clearRules(f *fieldProto) {
	if f.Options != nil {
		proto.ClearExtension(f.Options, validate.E_Field)
	}
}

// rule sets random rules that fit the type.
func (e *editor) rule(f *fieldProto) {
	r := e.rulesFor(f)
	if f.GetLabel() == repeated {
		list := &validate.RepeatedRules{}
		if e.chance(50) {
			list.MinItems = proto.Uint64(uint64(e.IntN(3)))
		}
		if e.chance(60) {
			list.MaxItems = proto.Uint64(uint64(3 + e.IntN(4)))
		}
		if e.chance(20) && f.GetType() != tMessage {
			list.Unique = proto.Bool(true)
		}
		if e.chance(50) {
			list.Items = r
		}
		r = &validate.FieldRules{Type: &validate.FieldRules_Repeated{Repeated: list}}
	}
	if e.chance(15) {
		r.Required = proto.Bool(true)
	}
	if e.chance(15) {
		r.Ignore = pick(e, validate.Ignore_IGNORE_IF_ZERO_VALUE, validate.Ignore_IGNORE_ALWAYS).Enum()
	}
	proto.SetExtension(options(f), validate.E_Field, r)
}

func (e *editor) rulesFor(f *fieldProto) *validate.FieldRules {
	r := &validate.FieldRules{}
	n := int64(e.IntN(12)) - 4
	switch f.GetType() {
	case descriptorpb.FieldDescriptorProto_TYPE_STRING:
		s := &validate.StringRules{}
		switch e.IntN(7) {
		case 0:
			s.MinLen = proto.Uint64(uint64(e.IntN(4)))
		case 1:
			s.MinLen, s.MaxLen = proto.Uint64(uint64(e.IntN(3))), proto.Uint64(uint64(3+e.IntN(30)))
		case 2:
			s.MaxBytes = proto.Uint64(uint64(3 + e.IntN(30)))
		case 3:
			s.Pattern = proto.String(pick(e, "^[a-z]{1,8}$", "^[a-z]*$", "^(chat|user)_[0-9A-Z]{4}$", "a"))
		case 4:
			s.In = []string{"x", "y", "z"}[:1+e.IntN(3)]
		case 5:
			if e.chance(50) {
				s.WellKnown = &validate.StringRules_Uuid{Uuid: true}
			} else {
				s.WellKnown = &validate.StringRules_Email{Email: true}
			}
		case 6:
			s.Prefix = proto.String(pick(e, "a", "ab"))
		}
		r.Type = &validate.FieldRules_String_{String_: s}
	case descriptorpb.FieldDescriptorProto_TYPE_BYTES:
		r.Type = &validate.FieldRules_Bytes{Bytes: &validate.BytesRules{MinLen: proto.Uint64(uint64(e.IntN(3))),
			MaxLen: proto.Uint64(uint64(3 + e.IntN(5)))}}
	case descriptorpb.FieldDescriptorProto_TYPE_INT32:
		i := &validate.Int32Rules{}
		switch e.IntN(4) {
		case 0:
			i.GreaterThan = &validate.Int32Rules_Gte{Gte: int32(n)}
		case 1:
			i.GreaterThan, i.LessThan = &validate.Int32Rules_Gt{Gt: int32(n)}, &validate.Int32Rules_Lt{Lt: int32(e.IntN(12) - 4)}
		case 2:
			i.GreaterThan, i.LessThan = &validate.Int32Rules_Gte{Gte: int32(n)},
				&validate.Int32Rules_Lte{Lte: int32(e.IntN(12) - 4)}
		case 3:
			i.In = []int32{0, 1, 2, 3}[e.IntN(2) : 2+e.IntN(3)]
		}
		r.Type = &validate.FieldRules_Int32{Int32: i}
	case descriptorpb.FieldDescriptorProto_TYPE_INT64:
		r.Type = &validate.FieldRules_Int64{Int64: &validate.Int64Rules{GreaterThan: &validate.Int64Rules_Gte{Gte: n},
			NotIn: []int64{n + 2}}}
	case descriptorpb.FieldDescriptorProto_TYPE_UINT64:
		r.Type = &validate.FieldRules_Uint64{
			Uint64: &validate.UInt64Rules{LessThan: &validate.UInt64Rules_Lt{Lt: uint64(n + 6)}}}
	case descriptorpb.FieldDescriptorProto_TYPE_DOUBLE:
		r.Type = &validate.FieldRules_Double{Double: &validate.DoubleRules{Finite: proto.Bool(e.chance(50)),
			GreaterThan: &validate.DoubleRules_Gt{Gt: float64(n)}}}
	case descriptorpb.FieldDescriptorProto_TYPE_BOOL:
		r.Type = &validate.FieldRules_Bool{Bool: &validate.BoolRules{Const: proto.Bool(e.chance(50))}}
	case tEnum:
		k := &validate.EnumRules{}
		switch e.IntN(3) {
		case 0:
			k.DefinedOnly = proto.Bool(true)
		case 1:
			k.In = []int32{0, 1}
		case 2:
			k.NotIn = []int32{0}
		}
		r.Type = &validate.FieldRules_Enum{Enum: k}
	case tMessage:
		if f.GetTypeName() == ".google.protobuf.Timestamp" {
			r.Type = &validate.FieldRules_Timestamp{
				Timestamp: &validate.TimestampRules{
					GreaterThan: &validate.TimestampRules_Gt{Gt: &timestamppb.Timestamp{Seconds: 1000 * n}}}}
		}
	}
	return r
}

// nudge moves one bound of the rules by one.
func (e *editor) nudge(f *fieldProto) {
	if f.Options == nil || !proto.HasExtension(f.Options, validate.E_Field) {
		e.rule(f)
		return
	}
	r := proto.CloneOf(proto.GetExtension(f.Options, validate.E_Field).(*validate.FieldRules))
	by := uint64(1)
	if e.chance(50) {
		by = ^uint64(0) // minus one
	}
	move := func(n *uint64) *uint64 {
		if n == nil || *n == 0 {
			return proto.Uint64(1)
		}
		return proto.Uint64(*n + by)
	}
	switch t := r.Type.(type) {
	case *validate.FieldRules_String_:
		if t.String_.MaxLen != nil {
			t.String_.MaxLen = move(t.String_.MaxLen)
		} else {
			t.String_.MinLen = move(t.String_.MinLen)
		}
	case *validate.FieldRules_Repeated:
		t.Repeated.MaxItems = move(t.Repeated.MaxItems)
	case *validate.FieldRules_Int32:
		if g, ok := t.Int32.GreaterThan.(*validate.Int32Rules_Gte); ok {
			t.Int32.GreaterThan = &validate.Int32Rules_Gt{Gt: g.Gte - int32(e.IntN(2))}
		}
	case *validate.FieldRules_Int64:
		t.Int64.NotIn = append(t.Int64.NotIn, int64(e.IntN(8)))
	case *validate.FieldRules_Bytes:
		t.Bytes.MinLen = move(t.Bytes.MinLen)
	default:
		r.Required = proto.Bool(!r.GetRequired())
	}
	proto.SetExtension(f.Options, validate.E_Field, r)
}
