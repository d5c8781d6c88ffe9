package streams

import (
	"flag"
	"os"
	"testing"
)

// buildDir is where the server is built.
var buildDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "parley-streams-*")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		buildDir = dir
		// All tests wait, none works: they run at once, however few processors there are.
		flag.Parse()
		if err := flag.Set("test.parallel", "16"); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}
