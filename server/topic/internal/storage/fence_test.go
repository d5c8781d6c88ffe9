package storage

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

const attr = "epoch"

func keyOf(name string) store.Key { return store.Key{Table: store.Topics, PK: "p", SK: name} }

func put(name string, cond store.Condition) store.Write {
	return store.Write{
		Op: store.OpPut, Key: keyOf(name), Cond: cond, Name: name,
		Item: store.NewItem(store.Attr{Name: "a", Value: store.Int(1)}),
	}
}

// What an owner writes after another one has begun is refused as a whole, in whichever way it
// is written, and told apart from a condition of its own that failed.
func TestFence(t *testing.T) {
	ctx := t.Context()
	s := storetest.NewMemory(time.Now)
	begin := func() *fencedStore {
		epoch, err := takeEpoch(ctx, s, keyOf("counters"), attr)
		if err != nil {
			t.Fatal(err)
		}
		return newFencedStore(s, keyOf("counters"), attr, epoch)
	}
	there := func(name string) bool {
		it, err := s.Get(ctx, keyOf(name), store.Strong)
		if err != nil {
			t.Fatal(err)
		}
		return it != nil
	}
	old := begin()
	if err := old.Transact(ctx, store.Plan{Writes: []store.Write{put("one", store.Absent())}}); err != nil ||
		!there("one") {
		t.Fatal(err)
	}
	var failed *store.ConditionError
	err := old.Transact(ctx, store.Plan{Writes: []store.Write{put("one", store.Absent()), put("two", store.Condition{})}})
	if !errors.As(err, &failed) || errors.Is(err, ErrFenced) || there("two") {
		t.Errorf("a condition of the plan itself: %v", err)
	}
	select {
	case <-old.Lost():
		t.Error("the owner has lost the topics by a condition of its own")
	default:
	}
	next := begin()
	own := store.Write{
		Op: store.OpUpdate, Key: keyOf("counters"), Name: "number", Cond: store.Exists().Eq(attr, store.Int(1)),
		Update: store.Update{Set: []store.Attr{{Name: "number", Value: store.Int(9)}}},
	}
	for what, err := range map[string]error{
		"a plan":                   old.Transact(ctx, store.Plan{Writes: []store.Write{put("late", store.Condition{})}}),
		"a plan, failing besides":  old.Transact(ctx, store.Plan{Writes: []store.Write{put("one", store.Absent())}}),
		"one that has its own":     old.Transact(ctx, store.Plan{Writes: []store.Write{put("late", store.Condition{}), own}}),
		"a batch":                  old.BatchWrite(ctx, []store.Write{put("late", store.Condition{})}),
		"a batch that removes one": old.BatchWrite(ctx, []store.Write{{Op: store.OpDelete, Key: keyOf("one")}}),
	} {
		if !errors.Is(err, ErrFenced) || errors.As(err, &failed) {
			t.Errorf("%s of an earlier owner: %v, expected ErrFenced and no ConditionError", what, err)
		}
	}
	if there("late") || !there("one") {
		t.Error("an earlier owner has written")
	}
	<-old.Lost()
	if err := next.BatchWrite(ctx, []store.Write{put("late", store.Condition{})}); err != nil || !there("late") {
		t.Errorf("the newest owner: %v", err)
	}
}

// The largest plan of an owner is one that every store takes, and the caller's list stays as
// it was.
func TestFenceLeavesRoom(t *testing.T) {
	ctx := t.Context()
	s := storetest.NewMemory(time.Now)
	epoch, err := takeEpoch(ctx, s, keyOf("counters"), attr)
	if err != nil {
		t.Fatal(err)
	}
	writes := make([]store.Write, 0, store.MaxPlanWrites)
	for i := range MaxPlanWrites {
		writes = append(writes, put(string(rune('A'+i)), store.Condition{}))
	}
	kept := slices.Clone(writes[:cap(writes)])
	if err := newFencedStore(s, keyOf("counters"), attr, epoch).Transact(ctx, store.Plan{Writes: writes}); err != nil {
		t.Fatal(err)
	}
	if last := writes[:cap(writes)]; last[len(last)-1].Op != kept[len(kept)-1].Op {
		t.Error("the caller's list was written to")
	}
}
