package streams

import (
	"os"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
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
		testkit.Waiting()
		return m.Run()
	}())
}
