package registry

import (
	"maps"
	"testing"

	"github.com/parley-chat/parley/server/store/embedded"
)

// What was registered is there after a restart, under the same ids.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	var first map[string]int
	for range 2 {
		st, err := embedded.Open(embedded.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		r := New(st)
		ids, err := r.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Register(t.Context(), "s", Schema{Text: small}, RegisterOptions{})
		if err != nil || v.Version != 1 {
			t.Fatal(v.Version, err)
		}
		ids["s"] = v.ID
		if first == nil {
			first = ids
		}
		if !maps.Equal(ids, first) {
			t.Errorf("ids %v, then %v", first, ids)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
