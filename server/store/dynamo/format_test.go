package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// Versions in the order of their releases. A format comes in two releases: the second version knows
// format 2, the third one writes it.
var (
	first  = dynamo.Format{Version: 1, Reader: 1}
	second = dynamo.Format{Version: 2, Reader: 1}
	third  = dynamo.Format{Version: 2, Reader: 2}
)

// unformatted is a store without a row of the format. Tables are used again by other tests.
func unformatted(t *testing.T) *dynamo.Store {
	t.Helper()
	s := dynamotest.Fresh(t)
	t.Cleanup(func() {
		testkit.Must(t, s.BatchWrite(context.Background(), []store.Write{{Op: store.OpDelete, Key: dynamo.FormatKey}}))
	})
	return s
}

// Processes of two releases that follow on each other run on the same tables and restart in any
// order. One that cannot read what a newer one writes is refused, in one line.
func TestFormats(t *testing.T) {
	for name, tt := range map[string]struct {
		before, taken, refused []dynamo.Format // those before have used the tables, in this order
	}{
		"new tables":        {taken: []dynamo.Format{first, second, third}},
		"the first release": {before: []dynamo.Format{first}, taken: []dynamo.Format{first, second, third}},
		"the second":        {before: []dynamo.Format{first, second}, taken: []dynamo.Format{first, second, third}},
		"the third": {before: []dynamo.Format{second, third}, taken: []dynamo.Format{second, third},
			refused: []dynamo.Format{first}},
		"a release left out": {before: []dynamo.Format{first, third}, taken: []dynamo.Format{third},
			refused: []dynamo.Format{first}},
		"a later one that still writes format 1": {before: []dynamo.Format{third, {Version: 3, Reader: 1}},
			taken: []dynamo.Format{third}, refused: []dynamo.Format{first}},
		"an earlier one after": {before: []dynamo.Format{third, second}, taken: []dynamo.Format{third},
			refused: []dynamo.Format{first}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, known := range append(tt.taken, tt.refused...) {
				s := unformatted(t)
				for _, earlier := range tt.before {
					testkit.Must(t, s.EnterFormat(t.Context(), earlier))
				}
				err := s.EnterFormat(t.Context(), known)
				refused := errors.Is(err, dynamo.ErrFormat)
				want := slices.Contains(tt.refused, known)
				if refused != want || err != nil && !refused {
					t.Errorf("%+v: %v, expected a refusal: %t", known, err, want)
				}
				if text := fmt.Sprint(err); refused &&
					(strings.Contains(text, "\n") || !strings.Contains(text, "format 2, this version knows 1")) {
					t.Errorf("the refusal says %q", err)
				}
			}
		})
	}
}

// A version that was refused has changed nothing, and those that enter at once leave, also when answers are
// lost, the row of the newest.
func TestFormatIsNeverLowered(t *testing.T) {
	s := unformatted(t)
	var entering sync.WaitGroup
	begin := make(chan struct{}) // once all have opened the tables
	for range 4 {
		for _, known := range []dynamo.Format{second, third} {
			o := dynamo.Options{Prefix: s.Options().Prefix, Wire: s.Options().Wire}
			dynamotest.On("PutItem", dynamotest.LostAnswer, dynamotest.Throttled).Inject(&o)
			other := dynamotest.Open(t, o)
			entering.Go(func() {
				<-begin
				if err := other.EnterFormat(t.Context(), known); err != nil {
					t.Error(err)
				}
			})
		}
	}
	close(begin)
	entering.Wait()
	row := func() store.Item {
		it, err := s.Get(t.Context(), dynamo.FormatKey, store.Strong)
		testkit.Must(t, err)
		return it
	}
	if it := row(); it.Get("format").Int64() != 2 || it.Get("reader").Int64() != 2 {
		t.Fatalf("the row is %v", it)
	}
	if err := s.EnterFormat(t.Context(), first); !errors.Is(err, dynamo.ErrFormat) {
		t.Fatalf("an older version: %v", err)
	}
	if it := row(); it.Get("format").Int64() != 2 || it.Get("reader").Int64() != 2 {
		t.Errorf("after a refusal the row is %v", it)
	}
}

// Tables that a newer version has written are not opened.
func TestNewerTablesAreNotOpened(t *testing.T) {
	s := unformatted(t)
	testkit.Must(t, s.EnterFormat(t.Context(), dynamo.Format{Version: 9, Reader: 1}))
	same := dynamo.Options{Prefix: s.Options().Prefix, Wire: s.Options().Wire}
	_ = dynamotest.Open(t, same) // it writes what this version can read
	testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Key: dynamo.FormatKey,
		Cond: store.Exists(), Name: "newer",
		Update: store.Update{Set: []store.Attr{{Name: "reader", Value: store.Int(9)}}}}}}))
	if _, err := dynamo.Open(t.Context(), same); !errors.Is(err, dynamo.ErrFormat) {
		t.Errorf("opened: %v", err)
	}
	if err := s.CheckFormat(t.Context(), store.Eventual); !errors.Is(err, dynamo.ErrFormat) {
		t.Errorf("a process that runs is not told: %v", err)
	}
}
