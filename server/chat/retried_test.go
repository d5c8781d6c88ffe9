package chat_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// creating does something after each read of a group's pending members, before the chunk that
// is planned on them.
type creating struct {
	store.Store
	do func(chatID string)
}

func (b *creating) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	items, err := b.Store.BatchGet(ctx, keys, c)
	if keys[0].Table == store.PendingMembers && len(items) > 0 && items[0] != nil {
		b.do(keys[0].PK)
	}
	return items, err
}

// L-169, L-172: members who leave and messages that are sent while a group is made, through the
// same server or another one, are no retries of its second phase: the alert on these would fire
// on a healthy system.
func TestLeaversAreNoRetries(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		w := newFixture(t, dynamotest.Store(t, time.Now))
		users := numbered("u", 6)
		st, retries, reads := &creating{Store: w.store}, 0, 0
		s := w.service("p", st, func(c *chat.Config) {
			c.Chunk, c.Meter.CreationRetried = 1, func() { retries++ }
		})
		other := s
		if elsewhere {
			other = w.service("q", w.store)
		}
		w.users(s, append(users, "ann")...)
		st.do = func(id string) {
			w.send(other, id, "ann", "x")
			gone := chat.MemberChange{Caller: users[0], ChatID: id} // who is in by now
			op := chat.OpLeave
			switch reads++; reads {
			case 1: // nobody is in
				op, gone = chat.OpRemove, chat.MemberChange{Caller: "ann", ChatID: id, UserID: users[5]}
			case 2:
			case 3:
				gone.Caller = users[1]
			default:
				return
			}
			if err := changeMember(w.ctx, other, op, gone); err != nil {
				t.Error(err)
			}
		}
		c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: users})
		if err != nil || c.Incomplete != nil || w.chat(c.ChatID).MemberCount != 4 || reads < 4 {
			t.Errorf("%+v, %v after %d chunks", c, err, reads)
		}
		if retries != 0 {
			t.Errorf("%d retries of a creation from which three members left (elsewhere: %v), want none", retries, elsewhere)
		}
		w.check()
	}
}
