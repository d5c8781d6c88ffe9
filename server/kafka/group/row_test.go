package group

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func noRows() rows {
	return rows{groups: map[string]header{}, offsets: map[string]map[partitionKey]offset{}}
}

// The bytes of rows are those that installations have stored.
func TestStoredForm(t *testing.T) {
	h := header{generation: 300, empty: 1_700_000_000_000 * time.Millisecond, owner: "reader", kind: "consumer"}
	o := offset{at: -1, epoch: 7, metadata: "m", committed: 1_700_000_000_001 * time.Millisecond, retention: time.Second}
	for _, r := range []struct {
		what string
		got  []byte
		want string
	}{
		{"key of a group", groupKey("g"), "\x01g"},
		{"key of an offset", offsetKey("g", partitionKey{"events", 258}), "\x02\x01gevents\x00\x00\x01\x02"},
		{"group", h.value(), "\x01\xac\x02\x80\xd0\x95\xff\xbc1\x06reader\x08consumer"},
		{"offset", o.value(), "\x01\x01\x0e\x01m\x81\xd0\x95\xff\xbc1\xe8\x07"},
	} {
		testkit.Equal(t, r.what, string(r.got), r.want)
	}
	all := noRows()
	testkit.Must(t, all.add(Row{groupKey("g"), h.value()}))
	testkit.Must(t, all.add(Row{offsetKey("g", partitionKey{"events", 258}), o.value()}))
	testkit.Must(t, all.check())
	testkit.Equal(t, "group", all.groups["g"], h)
	testkit.Equal(t, "offset", all.offsets["g"][partitionKey{"events", 258}], o)
}

// Each row that is cut, or whose bytes go on, is an error that names it.
func TestDamagedRows(t *testing.T) {
	h := header{generation: 1, empty: time.Second, owner: "reader", kind: "consumer"}.value()
	o := offset{at: 5, metadata: "m", committed: time.Second}.value()
	key, at := groupKey("g"), offsetKey("g", partitionKey{"events", 1})
	var damaged []Row
	for i := range h {
		damaged = append(damaged, Row{key, h[:i]})
	}
	for i := range o {
		damaged = append(damaged, Row{at, o[:i]})
	}
	for i := range at {
		damaged = append(damaged, Row{at[:i][:len(at[:i]):len(at[:i])], o})
	}
	damaged = append(damaged, Row{key, append(h, 0)}, Row{at, append(o, 0)}, Row{[]byte{3, 'x'}, h},
		Row{key, append([]byte{2}, h[1:]...)}, Row{append(at[:len(at)-4:len(at)-4], 0xff, 0, 0, 0), o},
		Row{key, append([]byte{1}, bytes.Repeat([]byte{0xff}, 20)...)})
	for _, r := range damaged {
		all := noRows()
		err := all.add(r)
		if len(r.Key) > 7 && len(r.Key) < len(at) && r.Key[0] == kindOffset && err == nil {
			continue // a shorter topic
		}
		if err == nil || !strings.Contains(err.Error(), "key") {
			t.Errorf("key %x, value %x: %v", r.Key, r.Value, err)
		}
	}
	all := noRows()
	testkit.Must(t, all.add(Row{at, o}))
	if err := all.check(); err == nil || !strings.Contains(err.Error(), `"g"`) {
		t.Errorf("an offset without its group: %v", err)
	}
}

// Reading any bytes gives an error, or values that are stored and read again as they are.
func FuzzRows(f *testing.F) {
	f.Add(groupKey("g"), header{generation: 1, empty: time.Second, owner: "o", kind: "k"}.value())
	f.Add(offsetKey("g", partitionKey{"events", 1}), offset{at: 5, metadata: "m", committed: time.Second}.value())
	f.Fuzz(func(t *testing.T, key, value []byte) {
		all := noRows()
		if all.add(Row{key, value}) != nil {
			return
		}
		again := noRows()
		for name, h := range all.groups {
			testkit.Must(t, again.add(Row{groupKey(name), h.value()}))
		}
		for name, offsets := range all.offsets {
			for p, o := range offsets {
				testkit.Must(t, again.add(Row{offsetKey(name, p), o.value()}))
			}
		}
		testkit.Equal(t, "rows", again, all)
	})
}
