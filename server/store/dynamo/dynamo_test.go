package dynamo_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func contract(t *testing.T, change ...func(*dynamo.Options)) {
	dynamotest.Endpoint(t)
	storetest.Run(t, func(t *testing.T) storetest.Engine {
		clock := storetest.NewClock()
		s := dynamotest.Fresh(t, append(change, func(o *dynamo.Options) { o.Clock = clock.Now })...)
		return storetest.Engine{Store: s, Clock: clock, Reopen: func() store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return dynamotest.Open(t, s.Options())
		}}
	})
}

func TestContract(t *testing.T) { contract(t) }

// Transactions of one write keep the contract, too.
func TestContractWithoutSingleWrites(t *testing.T) { contract(t, dynamo.NoShort) }

func TestOpenWithoutTables(t *testing.T) {
	_, err := dynamo.Open(t.Context(),
		dynamo.Options{Wire: wire.Config{Endpoint: dynamotest.Endpoint(t)}, Prefix: "nothing_here_"})
	if err == nil || !strings.Contains(err.Error(), wire.ErrNoTables.Error()) || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
}
