package chat

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// maxChunk is the number of members that one plan moves from pending to
// membership: three writes each, and four for chat, pending row, head and outbox
// row, would allow 32; 25 is what the design sets (L-034).
const maxChunk = min(25, (store.MaxPlanWrites-4)/3)

// CreateDirect asks for the direct chat of two people.
type CreateDirect struct {
	Caller    string
	Other     string
	History   table.History
	RequestID string
	Cause     event.Cause
}

// CreateGroup asks for a group.
type CreateGroup struct {
	Caller    string
	Name      string
	Members   []string // the others; repetitions and the caller are dropped
	History   table.History
	RequestID string
	Cause     event.Cause
}

// Created names the chat.
type Created struct {
	ChatID   string
	Replayed bool // the chat was there before
}

// CreateDirect creates the direct chat of two people, or returns the one that
// they have (L-012…L-024). Errors: ErrInvalidOperation for a chat with oneself,
// ErrUserNotFound, ErrKeyReused.
func (s *Service) CreateDirect(ctx context.Context, c CreateDirect) (Created, error) {
	if c.Caller == c.Other {
		return Created{}, ErrInvalidOperation
	}
	if c.History == "" {
		c.History = table.All
	}
	req := newRequest("create", c.Caller, "", c.RequestID, "direct", c.Other, string(c.History))
	if done, err := s.replay(ctx, req); err != nil || done != nil {
		return replayed(done), err
	}
	key := table.DirectIndexKey(c.Caller, c.Other)
	it, err := s.cfg.Store.Get(ctx, key, store.Strong)
	if err != nil {
		return Created{}, fmt.Errorf("read index of direct chats: %w", err)
	}
	if it != nil {
		return Created{ChatID: table.DirectIndexFrom(it).ChatID, Replayed: true}, nil
	}
	if err := s.usersExist(ctx, []string{c.Other}); err != nil {
		return Created{}, err
	}

	d, err := s.draftDirect(c, s.cfg.NewID("chat_"))
	if err != nil {
		return Created{}, err
	}
	d.request(req)
	err = s.transact(ctx, d.plan())
	failed := conditionError(err)
	if err == nil || (failed != nil && d.isOurs(failed)) {
		s.committed(d)
		return Created{ChatID: d.head.ChatID}, nil
	}
	if failed == nil {
		return Created{}, err
	}
	// Lost a race, with an equal request or for the pair: the winner's chat is the
	// answer (L-018).
	if done, err := s.replay(ctx, req); err != nil || done != nil {
		return replayed(done), err
	}
	if f, ok := failed.Failed(condPair); ok && f.Current != nil {
		return Created{ChatID: table.DirectIndexFrom(f.Current).ChatID, Replayed: true}, nil
	}
	return Created{}, err
}

func replayed(r *table.Request) Created {
	if r == nil {
		return Created{}
	}
	return Created{ChatID: r.ChatID, Replayed: true}
}

// draftDirect makes the plan of a direct chat: complete in one. The other
// person's membership has an event of its own, like every membership but a
// creator's, so that open streams learn of it in the one way there is.
func (s *Service) draftDirect(c CreateDirect, chatID string) (*draft, error) {
	users := []string{c.Caller, c.Other}
	d, err := s.draftChat(table.Chat{
		ChatID: chatID, Type: table.Direct, CreatedBy: c.Caller, History: c.History, MemberCount: 2, DirectUsers: users,
	}, table.Member, users, c.Cause)
	if err != nil {
		return nil, err
	}
	d.putIf(table.DirectIndexKey(c.Caller, c.Other), table.DirectIndex{ChatID: chatID, CreatedAt: d.at}.Item(), store.Absent(), condPair)
	return d, d.joined(c.Other, table.Member, c.History, c.Caller, 2, nil)
}

// draftChat begins the plan of a new chat: the chat, its creator, and the event.
func (s *Service) draftChat(c table.Chat, role table.Role, members []string, cause event.Cause) (*draft, error) {
	cause.Actor = c.CreatedBy
	d := s.newDraft(table.Head{ChatID: c.ChatID}, cause)
	md := d.next(event.TypeChatCreated)
	c.Status, c.CreatedAt, c.UpdatedAt, c.Version = table.Active, d.at, d.at, d.head.Version
	d.putIf(table.ChatKey(c.ChatID), c.Item(), store.Absent(), condChat)
	d.putIf(table.MembershipKey(c.ChatID, c.CreatedBy), table.Membership{Role: role, JoinedAt: d.at, Version: d.head.Version}.Item(), store.Absent(), condTarget)
	d.put(table.UserChatKey(c.CreatedBy, c.ChatID), d.userRow(c.CreatedBy, c.History).Item())
	kind, history := eventv1.ChatType_CHAT_TYPE_GROUP, eventv1.HistoryMode_HISTORY_MODE_ALL
	if c.Type == table.Direct {
		kind = eventv1.ChatType_CHAT_TYPE_DIRECT
	}
	if c.History == table.SinceJoined {
		history = eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED
	}
	return d, d.record(&eventv1.ChatCreated{
		Metadata: md, ChatId: c.ChatID, ChatType: kind, Name: c.Name, Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE,
		CreatedBy: c.CreatedBy, MemberCount: int32(c.MemberCount), InitialMembers: members, CreatedAt: d.time(), History: history,
	})
}

// CreateGroup creates a group in two phases (L-025…L-046): one plan creates it
// with its owner and the list of the others as pending; then plans of a chunk
// each make these members. After a crash in between FinishPending, or a
// repetition of the request, completes the group. Errors: ErrInvalidArgument,
// ErrUserNotFound, ErrKeyReused.
func (s *Service) CreateGroup(ctx context.Context, c CreateGroup) (Created, error) {
	if c.History == "" {
		c.History = table.All
	}
	others, err := groupMembers(c)
	if err != nil {
		return Created{}, err
	}
	req := newRequest("create", c.Caller, "", c.RequestID, "group", c.Name, string(c.History), strings.Join(others, "#"))
	done, err := s.replay(ctx, req)
	if err != nil {
		return Created{}, err
	}
	if done == nil {
		if err := s.usersExist(ctx, others); err != nil {
			return Created{}, err
		}
		d, err := s.draftGroup(c, s.cfg.NewID("chat_"), others)
		if err != nil {
			return Created{}, err
		}
		d.request(req)
		err = s.transact(ctx, d.plan())
		failed := conditionError(err)
		switch {
		case err == nil || (failed != nil && d.isOurs(failed)):
			s.committed(d)
			return Created{ChatID: d.head.ChatID}, s.FinishPending(ctx, d.head.ChatID)
		case failed == nil:
			return Created{}, err
		}
		// Lost a race with an equal request.
		if done, err = s.replay(ctx, req); err != nil {
			return Created{}, err
		}
		if done == nil {
			return Created{}, failed
		}
	}
	return replayed(done), s.FinishPending(ctx, done.ChatID)
}

// groupMembers checks the parts of a group and returns the other members, sorted.
func groupMembers(c CreateGroup) ([]string, error) {
	if n := utf8.RuneCountInString(c.Name); n < 1 || n > MaxNameRunes {
		return nil, fmt.Errorf("%w: name must have 1 to %d characters", ErrInvalidArgument, MaxNameRunes)
	}
	others := slices.Clone(c.Members)
	slices.Sort(others)
	others = slices.DeleteFunc(slices.Compact(others), func(u string) bool { return u == c.Caller })
	if len(others) < 1 || len(others) > MaxMembers-1 {
		return nil, fmt.Errorf("%w: a group has 1 to %d other members", ErrInvalidArgument, MaxMembers-1)
	}
	return others, nil
}

func (s *Service) draftGroup(c CreateGroup, chatID string, others []string) (*draft, error) {
	d, err := s.draftChat(table.Chat{
		ChatID: chatID, Type: table.Group, Name: c.Name, CreatedBy: c.Caller, History: c.History, MemberCount: int64(len(others)) + 1,
	}, table.Owner, append([]string{c.Caller}, others...), c.Cause)
	if err != nil {
		return nil, err
	}
	row := table.Pending{Members: others, CreatedBy: c.Caller, CreatedAt: d.at}
	d.putIf(table.PendingKey(chatID), row.Item(), store.Absent(), condPending)
	return d, nil
}

func (s *Service) usersExist(ctx context.Context, users []string) error {
	keys := make([]store.Key, len(users))
	for i, u := range users {
		keys[i] = table.UserKey(u)
	}
	items, err := s.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read users: %w", err)
	}
	for i, it := range items {
		if it == nil {
			return fmt.Errorf("%w: %s", ErrUserNotFound, users[i])
		}
	}
	return nil
}

// FinishPending makes the pending members of a group members. Any process may
// call it at any time.
func (s *Service) FinishPending(ctx context.Context, chatID string) error {
	return s.submit(ctx, chatID, &command{run: func(ctx context.Context) error { return s.finishPending(ctx, chatID) }})
}

// finishPending runs in the chat's queue. Each chunk's plan demands the pending
// row as it was read, so that no member is added twice, and none that a command
// of another process dropped.
func (s *Service) finishPending(ctx context.Context, chatID string) error {
	for more := true; more; {
		more = false
		err := s.attempt(ctx, chatID, func(head table.Head) (*draft, error) {
			items, err := s.cfg.Store.BatchGet(ctx, []store.Key{table.PendingKey(chatID), table.ChatKey(chatID)}, store.Strong)
			if err != nil || items[0] == nil {
				more = false
				return nil, err
			}
			p := table.PendingFrom(chatID, items[0])
			more = len(p.Members) > s.cfg.Chunk
			return s.draftChunk(head, table.ChatFrom(chatID, items[1]), p)
		})
		if err != nil {
			return fmt.Errorf("finish group: %w", err)
		}
	}
	return nil
}

func (s *Service) draftChunk(head table.Head, c table.Chat, p table.Pending) (*draft, error) {
	d := s.newDraft(head, event.Cause{Actor: p.CreatedBy})
	n := min(s.cfg.Chunk, len(p.Members))
	// The count in each event is that of the committed state after it, in which
	// the members on their way in count already.
	for _, user := range p.Members[:n] {
		if err := d.joined(user, table.Member, c.History, p.CreatedBy, c.MemberCount, nil); err != nil {
			return nil, err
		}
	}
	as := store.Condition{}.Eq(table.AttrMembers, store.List(p.Members))
	if rest := p.Members[n:]; len(rest) > 0 {
		p.Members = rest
		d.putIf(table.PendingKey(c.ChatID), p.Item(), as, condPending)
	} else {
		d.writes = append(d.writes, store.Write{Op: store.OpDelete, Key: table.PendingKey(c.ChatID), Cond: as, Name: condPending})
	}
	d.count(0, store.Condition{})
	return d, nil
}
