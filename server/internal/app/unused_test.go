package app_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// The linker drops methods that nothing calls, unless some code looks methods up by names that it computes, as
// text/template does. Then it keeps every method of every type: the server had 24 MB more, a quarter. The table of
// functions, which also a stripped program has, names those that were kept.
func TestUnusedMethodsAreDropped(t *testing.T) {
	t.Parallel()
	program := testkit.Value(os.ReadFile(binary(t)))(t)
	kept := func(method string) bool {
		return bytes.Contains(program, []byte("github.com/redis/go-redis/v9.cmdable."+method+"\x00"))
	}
	if !kept("Del") {
		t.Error("got no method Del of Redis, want it: the server calls it")
	}
	if kept("GeoAdd") {
		t.Error("got the method GeoAdd of Redis, want it dropped: go build -ldflags=-dumpdep shows what has the mark ReflectMethod")
	}
}
