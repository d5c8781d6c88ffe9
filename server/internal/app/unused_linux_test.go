package app_test

import (
	"debug/elf"
	"testing"

	"github.com/parley-chat/parley/server/testkit"
)

// The linker drops methods that nothing calls, unless some code looks methods up by names that it computes, as
// text/template does. Then it keeps every method of every type: the server had 24 MB more, a quarter.
func TestUnusedMethodsAreDropped(t *testing.T) {
	t.Parallel()
	file := testkit.Value(elf.Open(binary(t)))(t)
	defer file.Close()
	symbols := testkit.Value(file.Symbols())(t)
	const used, unused = "go-redis/v9.cmdable.Del", "go-redis/v9.cmdable.GeoAdd"
	found := map[string]bool{}
	for _, s := range symbols {
		found[s.Name] = true
	}
	if name := "github.com/redis/" + used; !found[name] {
		t.Errorf("got no %s among %d symbols, want it: the server calls it", name, len(symbols))
	}
	if name := "github.com/redis/" + unused; found[name] {
		t.Errorf("got %s, want it dropped: go build -ldflags=-dumpdep shows what has the mark ReflectMethod", name)
	}
}
