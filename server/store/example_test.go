package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// A plan is written as a whole, or not at all and says which of its conditions failed.
func ExampleStore() {
	ctx := context.Background()
	var s store.Store = storetest.NewMemory(time.Now) // the oracle of tests; package backend opens real engines
	register := store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: store.Key{Table: store.Users, PK: "ann"}, Name: "user",
		Item: store.NewItem(store.Attr{Name: "logins", Value: store.Int(1)}),
		Cond: store.Absent(),
	}}}
	fmt.Println("first:", s.Transact(ctx, register))

	var failed *store.ConditionError
	if errors.As(s.Transact(ctx, register), &failed) {
		f, _ := failed.Failed("user")
		fmt.Println("again: there are", f.Current.Get("logins").Int64(), "logins")
	}

	login := store.Write{
		Op: store.OpUpdate, Key: store.Key{Table: store.Users, PK: "ann"}, Name: "user", Cond: store.Exists(),
		Update: store.Update{Add: []store.Increment{{Name: "logins", N: 1}}},
	}
	if err := s.Transact(ctx, store.Plan{Writes: []store.Write{login}}); err != nil {
		log.Fatal(err)
	}
	user, err := s.Get(ctx, login.Key, store.Strong)
	fmt.Println("then:", user.Get("logins").Int64(), err)
	// Output:
	// first: <nil>
	// again: there are 1 logins
	// then: 2 <nil>
}

// QueryAll reads a partition page by page, in order of the sort key.
func ExampleQueryAll() {
	ctx := context.Background()
	s := storetest.NewMemory(time.Now)
	var writes []store.Write
	for i, text := range []string{"hello", "how are you?", "bye"} {
		writes = append(writes, store.Write{
			Op:   store.OpPut,
			Key:  store.Key{Table: store.Messages, PK: "chat", SK: fmt.Sprintf("%03d", i+1)},
			Item: store.NewItem(store.Attr{Name: "text", Value: store.String(text)}),
		})
	}
	if err := s.BatchWrite(ctx, writes); err != nil {
		log.Fatal(err)
	}
	fromTheSecond := store.Query{Table: store.Messages, PK: "chat", From: "002", Consistency: store.Strong}
	for row, err := range store.QueryAll(ctx, s, fromTheSecond) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(row.Key.SK, row.Item.Get("text").Str())
	}
	// Output:
	// 002 how are you?
	// 003 bye
}
