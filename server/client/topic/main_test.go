package topic_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func TestMain(m *testing.M) {
	testkit.Waiting()
	m.Run()
}
