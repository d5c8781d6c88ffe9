package sample

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// mentioned returns the values that rules of a type name: bounds, constants, sets
// and examples.
func mentioned(rules []protoreflect.Message) []protoreflect.Value {
	var list []protoreflect.Value
	for _, r := range rules {
		for _, name := range []protoreflect.Name{"example", "const", "in", "gt", "gte", "lt", "lte", "not_in"} {
			f := r.Descriptor().Fields().ByName(name)
			switch {
			case f == nil || !r.Has(f):
			case f.IsList():
				for i := range r.Get(f).List().Len() {
					list = append(list, r.Get(f).List().Get(i))
				}
			default:
				list = append(list, r.Get(f))
			}
		}
	}
	return list
}

func intValues(k protoreflect.Kind, rules []protoreflect.Message) []protoreflect.Value {
	candidates := []*big.Int{big.NewInt(42)}
	around := func(n *big.Int) {
		for _, d := range []int64{0, 1, -1} {
			candidates = append(candidates, new(big.Int).Add(n, big.NewInt(d)))
		}
	}
	for _, v := range mentioned(rules) {
		if n := asBig(v); n != nil {
			around(n)
		}
	}
	around(new(big.Int))
	for _, bits := range []uint{7, 31, 32, 63, 64} {
		limit := new(big.Int).Lsh(big.NewInt(1), bits)
		around(limit)
		candidates = append(candidates, new(big.Int).Neg(limit))
	}
	var list []protoreflect.Value
	seen := map[string]bool{}
	for _, n := range candidates {
		if v, ok := intValue(k, n); ok && !seen[n.String()] {
			seen[n.String()] = true
			list = append(list, v)
		}
	}
	return list
}

func asBig(v protoreflect.Value) *big.Int {
	switch n := v.Interface().(type) {
	case int32:
		return big.NewInt(int64(n))
	case int64:
		return big.NewInt(n)
	case uint32:
		return big.NewInt(int64(n))
	case uint64:
		return new(big.Int).SetUint64(n)
	}
	return nil
}

func intValue(k protoreflect.Kind, n *big.Int) (protoreflect.Value, bool) {
	switch k {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n.Int64())), n.IsInt64() && n.Int64() == int64(int32(n.Int64()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n.Uint64())), n.IsUint64() && n.Uint64() <= math.MaxUint32
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(n.Int64()), n.IsInt64()
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n.Uint64()), n.IsUint64()
	}
	return protoreflect.Value{}, false
}

// numbered returns distinct values for long lists and maps.
func numbered(k protoreflect.Kind, i int64) (protoreflect.Value, bool) {
	if k == protoreflect.StringKind {
		return protoreflect.ValueOfString(fmt.Sprintf("k%d", i)), true
	}
	return intValue(k, big.NewInt(i+100))
}

func floatValues(k protoreflect.Kind, rules []protoreflect.Message) []protoreflect.Value {
	candidates := []float64{1.5}
	for _, v := range mentioned(rules) {
		n := v.Float()
		candidates = append(candidates, n, math.Nextafter(n, math.Inf(1)), math.Nextafter(n, math.Inf(-1)))
		if k == protoreflect.FloatKind {
			candidates = append(candidates, float64(math.Nextafter32(float32(n), math.MaxFloat32)),
				float64(math.Nextafter32(float32(n), -math.MaxFloat32)))
		}
	}
	candidates = append(candidates, 0, 1, -1, 0.1, math.MaxFloat32, -math.MaxFloat32, math.Inf(1), math.Inf(-1),
		math.NaN())
	if k == protoreflect.DoubleKind {
		candidates = append(candidates, math.MaxFloat64, math.SmallestNonzeroFloat64)
	}
	var list []protoreflect.Value
	for _, n := range candidates {
		if k == protoreflect.FloatKind {
			list = append(list, protoreflect.ValueOfFloat32(float32(n)))
		} else {
			list = append(list, protoreflect.ValueOfFloat64(n))
		}
	}
	return list
}

// One or more texts of each well-known format, by the name of its rule.
var formats = map[protoreflect.Name][]string{
	"email": {"a@example.com"}, "hostname": {"example.com"}, "ip": {"192.0.2.1", "2001:db8::1"}, "ipv4": {"192.0.2.1"},
	"ipv6": {"2001:db8::1"}, "uri": {"https://example.com/a?b#c"}, "uri_ref": {"./a?b"},
	"address": {"example.com", "192.0.2.1"},
	"uuid":    {"123e4567-e89b-42d3-a456-426614174000"}, "tuuid": {"123e4567e89b42d3a456426614174000"},
	"ip_with_prefixlen": {"192.0.2.1/24", "2001:db8::1/48"}, "ipv4_with_prefixlen": {"192.0.2.1/24"},
	"ipv6_with_prefixlen": {"2001:db8::1/48"},
	"ip_prefix":           {"192.0.2.0/24", "2001:db8::/48"}, "ipv4_prefix": {"192.0.2.0/24"},
	"ipv6_prefix":   {"2001:db8::/48"},
	"host_and_port": {"example.com:443"}, "ulid": {"01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "protobuf_fqn": {"a.b.C"},
	"protobuf_dot_fqn": {".a.b.C"},
	"well_known_regex": {"x-name"},
}

func stringValues(f protoreflect.FieldDescriptor, rules []protoreflect.Message) []protoreflect.Value {
	var texts []string
	for _, r := range rules {
		for v := range r.Range {
			texts = append(texts, formats[v.Name()]...)
		}
	}
	slices.Sort(texts)
	for _, v := range mentioned(rules) {
		texts = append(texts, v.String())
	}
	texts = append(texts, patterns(rules)...)
	prefix, middle, suffix := required(rules, "prefix"), required(rules, "contains"), required(rules, "suffix")
	for _, n := range sizes(rules, "len") {
		texts = append(texts, filled(prefix, middle, suffix, "a", int(n)), filled(prefix, middle, suffix, "é", int(n)))
	}
	for _, n := range sizes(rules, "bytes") {
		texts = append(texts, filled(prefix, middle, suffix, "a", int(n)), filled(prefix, middle, suffix, "漢", int(n)/3))
	}
	texts = append(texts, prefix+middle+suffix, "", "0", "hello, world\n", "\"\\<>&\u2028", "漢字😀")
	if !schema.VerifiesUTF8(f) {
		texts = append(texts, "\xff\xfe")
	}
	var list []protoreflect.Value
	for _, s := range unique(texts) {
		if schema.VerifiesUTF8(f) && !utf8.ValidString(s) {
			continue
		}
		list = append(list, protoreflect.ValueOfString(s))
	}
	return list
}

// required returns a text or bytes that a rule asks for.
func required(rules []protoreflect.Message, name protoreflect.Name) string {
	for _, r := range rules {
		f := r.Descriptor().Fields().ByName(name)
		switch {
		case f == nil || !r.Has(f):
		case f.Kind() == protoreflect.BytesKind:
			return string(r.Get(f).Bytes())
		default:
			return r.Get(f).String()
		}
	}
	return ""
}

// filled returns n times a character, with the given parts in place of some.
func filled(prefix, middle, suffix, char string, n int) string {
	rest := n - utf8.RuneCountInString(prefix+middle+suffix)
	return prefix + middle + strings.Repeat(char, max(rest, 0)) + suffix
}

func bytesValues(rules []protoreflect.Message) []protoreflect.Value {
	var texts []string
	for _, v := range mentioned(rules) {
		texts = append(texts, string(v.Bytes()))
	}
	for _, r := range rules {
		for v := range r.Range {
			switch v.Name() {
			case "ip", "ipv4":
				texts = append(texts, "\xc0\x00\x02\x01", strings.Repeat("\x01", 16))
			case "ipv6", "uuid":
				texts = append(texts, strings.Repeat("\x01", 16))
			}
		}
	}
	texts = append(texts, patterns(rules)...)
	prefix, middle, suffix := required(rules, "prefix"), required(rules, "contains"), required(rules, "suffix")
	for _, n := range sizes(rules, "len") {
		texts = append(texts, filled(prefix, middle, suffix, "a", int(n)))
	}
	texts = append(texts, "", "\x00", "\xff\xfe\x00", "漢字")
	var list []protoreflect.Value
	for _, s := range unique(texts) {
		list = append(list, protoreflect.ValueOfBytes([]byte(s)))
	}
	return list
}
