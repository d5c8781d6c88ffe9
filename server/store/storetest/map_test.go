package storetest_test

import (
	"testing"

	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMap(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Engine {
		clock := storetest.NewClock()
		return storetest.Engine{
			Store: storetest.NewMap(clock.Now), Clock: clock,
			Without: map[storetest.Category]string{storetest.Restart: "it keeps nothing"},
		}
	})
}
