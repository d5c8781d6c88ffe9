package serve

import (
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// everything is a coordinator with all versions.
type everything struct{ Groups }

func (everything) Versions(kmsg.Key) (first, last int16, ok bool) { return 0, 99, true }

func table(t testing.TB) map[int16]*api {
	t.Helper()
	return testkit.Value(newAPIs(everything{}))(t)
}

// filled makes a request with random content in each field.
func filled(rng *rand.Rand, key kmsg.Key, version int16) kmsg.Request {
	req := key.Request()
	randomize(rng, reflect.ValueOf(req).Elem())
	req.SetVersion(version)
	return req
}

func randomize(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.SetZero(); rng.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			randomize(rng, v.Elem())
		}
	case reflect.Slice:
		n := rng.IntN(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			randomize(rng, v.Index(i))
		}
	case reflect.Struct:
		if tags, ok := v.Addr().Interface().(*kmsg.Tags); ok {
			for range rng.IntN(3) {
				tags.Set(100+rng.Uint32N(1000), make([]byte, rng.IntN(200)))
			}
			return
		}
		for i := range v.NumField() {
			randomize(rng, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			randomize(rng, v.Index(i))
		}
	case reflect.String:
		v.SetString(string(make([]byte, rng.IntN(200))))
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(rng.Int64() >> (rng.IntN(64)))
	case reflect.Uint8:
		v.SetUint(rng.Uint64() & 0xff)
	case reflect.Bool:
		v.SetBool(rng.IntN(2) > 0)
	default:
		panic(v.Kind())
	}
}

// The shape of each version of each request is the one that kmsg encodes: the walk ends with the last byte.
// Without any byte at the end, the request is refused.
func TestShapes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, a := range table(t) {
		for version := a.min; version <= a.max; version++ {
			for range 50 {
				req := filled(rng, a.key, version)
				b := req.AppendTo(nil)
				rest, err := a.shape.walk(b, version, req.IsFlexible())
				if err != nil || len(rest) > 0 {
					t.Fatalf("%s %d: %d of %d bytes remain, %v", a.key.Name(), version, len(rest), len(b), err)
				}
				if _, err := a.parse(version, b); err != nil {
					t.Fatalf("%s %d: %v", a.key.Name(), version, err)
				}
			}
			for n, b := 0, filled(rng, a.key, version).AppendTo(nil); n < len(b); n++ {
				if _, err := a.parse(version, b[:n]); err == nil {
					t.Fatalf("%s %d: %d of %d bytes suffice", a.key.Name(), version, n, len(b))
				}
			}
		}
	}
}

// A request that claims more than it has is refused before kmsg allocates what it claims.
func TestClaimsTakeNoMemory(t *testing.T) {
	apis := table(t)
	many := binary.BigEndian.AppendUint32(nil, 1<<20-100)
	zeros := make([]byte, 1<<20-100)
	manyTags := []byte{0xff, 0xff, 0xff, 0xff, 0x07}
	for name, c := range map[string]struct {
		key     kmsg.Key
		version int16
		bytes   []byte
	}{
		"list":         {kmsg.Metadata, 0, append(many, zeros...)},
		"compact list": {kmsg.DescribeTopicPartitions, 0, append([]byte{0x80, 0x80, 0x3f}, zeros...)},
		"inner list": {kmsg.ListOffsets, 1, append([]byte{255, 255, 255, 255, 0, 0, 0, 1, 0, 0, 0, 0x0f, 0xff, 0},
			zeros...)},
		"tags":           {kmsg.ListGroups, 3, manyTags},
		"tags of a list": {kmsg.DescribeTopicPartitions, 0, append([]byte{2, 2, 'a'}, manyTags...)},
		"many tags":      {kmsg.ListGroups, 3, append([]byte{17}, make([]byte, 34)...)},
		"huge tag":       {kmsg.ListGroups, 3, append([]byte{1, 5}, manyTags...)},
		"elements": {kmsg.DescribeGroups, 0, append(binary.BigEndian.AppendUint32(nil, 32<<10+1),
			make([]byte, 2*(32<<10+1))...)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := apis[int16(c.key)].parse(c.version, c.bytes)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
			t.Errorf("%s: takes %d bytes", name, n)
		}
	}
	// As many elements and tags as allowed pass.
	testkit.Value(apis[int16(kmsg.ListGroups)].parse(3, append([]byte{16}, make([]byte, 32)...)))(t)
	limit := append(binary.BigEndian.AppendUint32(nil, 32<<10), make([]byte, 2*(32<<10))...)
	testkit.Value(apis[int16(kmsg.DescribeGroups)].parse(0, limit))(t)
}

// Notations with mistakes are no shapes.
func TestNotation(t *testing.T) {
	for _, text := range []string{"x", "[4", "4]", "*", "?4", "a+:4", "3-b:4", "[s", "3+:"} {
		if s, err := parseShape(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
}

// Whatever a client sends as a request, reading it ends without a panic, and takes no more memory than
// its size allows.
func FuzzRequest(f *testing.F) {
	s := testkit.Value(New(Config{Groups: everything{}}))(f)
	rng := rand.New(rand.NewPCG(1, 1))
	format := kmsg.NewRequestFormatter(kmsg.FormatterClientID("fuzz"))
	for _, a := range s.apis {
		for version := a.min; version <= a.max; version++ {
			f.Add(format.AppendRequest(nil, filled(rng, a.key, version), 1)[4:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 64<<10 {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, body, err := s.header(b)
		if err == nil && h.api != nil {
			_, _ = h.api.parse(h.version, body) // any outcome but a panic
		}
		runtime.ReadMemStats(&after)
		// An empty string has 1 byte, and a struct with it 100. Other tests may run at the same time.
		if n := after.TotalAlloc - before.TotalAlloc; n > uint64(128*len(b)+1<<20) {
			t.Errorf("%d bytes take %d", len(b), n)
		}
	})
}
