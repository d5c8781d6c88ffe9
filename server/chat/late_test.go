package chat_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// lateOne loses sight of the first plan that adds cat; it arrives when cat's row has changed.
type lateOne struct {
	store.Store
	held  *store.Plan
	armed bool
	when  func(p store.Plan) bool
}

func (l *lateOne) Transact(ctx context.Context, p store.Plan) error {
	if l.armed && p.Token != "" && l.held == nil {
		l.held = &p
		return store.ErrAmbiguous
	}
	err := l.Store.Transact(ctx, p)
	if l.armed && l.held != nil && l.when(p) && err == nil {
		held := *l.held
		l.armed = false
		if e := l.Store.Transact(ctx, held); e != nil {
			panic(e)
		}
	}
	return err
}

// The first attempt of a plan is under way, its outcome unknown, when the second fails
// because a user's chats were not counted: counting them lets the first succeed, and the
// caller's own addition must not be refused as somebody else's.
func TestLatePlanAfterACount(t *testing.T) {
	m := storetest.NewMemory(time.Now)
	w := newFixture(t, m)
	l := &lateOne{Store: m, when: func(p store.Plan) bool {
		return len(p.Writes) == 1 &&
			p.Writes[0].Key == table.UserKey("cat")
	}}
	s := w.service("p", l)
	w.users(s, "ann", "bob", "cat")
	id := w.group(s, "ann", "bob")
	// The row of an earlier release.
	if err := m.Transact(w.ctx, store.Plan{
		Writes: []store.Write{{Op: store.OpPut, Key: table.UserKey("cat"),
			Item: table.User{UserID: "cat", CreatedAt: 1, Status: table.Active}.Item()}}}); err != nil {
		t.Fatal(err)
	}
	l.armed = true
	before := len(w.commits["p/"+id])
	_, err := s.Change(w.ctx, chat.OpAdd, chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member})
	if reported := len(w.commits["p/"+id]) - before; err != nil || reported != 1 {
		t.Errorf("%v, %d commits were reported", err, reported)
	}
}
