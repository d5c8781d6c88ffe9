package chat_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A group may be as large as its configuration says, up to 1,000 members, by whichever way
// they come; another process with a smaller limit leaves it as it is and adds nobody.
func TestLargeGroups(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		w.most = 1000
		of := func(process string, n int) *chat.Service {
			return w.service(process, st, func(c *chat.Config) { c.Members = n })
		}
		large, larger, small := of("p", 1000), of("q", 5000), of("r", 0)
		users := numbered("u", 1001)
		w.users(large, append(slices.Clone(users), "ann")...)
		create := func(s *chat.Service, others int) (chat.Created, error) {
			return s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: fmt.Sprint(others), Members: users[:others]})
		}
		for s, others := range map[*chat.Service]int{large: 1000, larger: 1000, small: 100} {
			if _, err := create(s, others); !errors.Is(err, chat.ErrInvalidArgument) {
				t.Errorf("a group of %d: %v, want ErrInvalidArgument", others+1, err)
			}
		}
		c, err := create(large, 998)
		if err != nil || c.Incomplete != nil {
			t.Fatal(c, err)
		}
		add := func(s *chat.Service, user string) error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: user, Role: table.Member})
			return err
		}
		if err := add(small, "u998"); !errors.Is(err, chat.ErrChatFull) {
			t.Errorf("by a process that allows 100: %v, want ErrChatFull", err)
		}
		if err := add(large, "u998"); err != nil {
			t.Error(err)
		}
		if err := add(larger, "u999"); !errors.Is(err, chat.ErrChatFull) {
			t.Errorf("member 1,001: %v, want ErrChatFull", err)
		}
		if _, err := small.Send(w.ctx, chat.Send{Caller: "u997", ChatID: c.ChatID, Content: "hello"}); err != nil {
			t.Error(err)
		}
		if err := changeMember(w.ctx, small, chat.OpRemove,
			chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "u500"}); err != nil {
			t.Error(err)
		}
		if row := w.chat(c.ChatID); row.MemberCount != 999 {
			t.Errorf("%d members, want 999", row.MemberCount)
		}
		w.check()
		w.checkCommits(true)
	})
}
