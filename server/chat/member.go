package chat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// request is what makes a command safe to repeat; without a scope it is not.
type request struct {
	scope string
	hash  []byte
}

func newRequest(procedure, user, parent, id string, content ...string) request {
	if id == "" {
		return request{}
	}
	h := sha256.New()
	for _, c := range content {
		fmt.Fprintf(h, "%d:%s", len(c), c)
	}
	return request{scope: table.Scope(procedure, user, parent, id), hash: h.Sum(nil)}
}

// replay finds out whether a request was carried out before. Errors:
// ErrKeyReused.
func (s *Service) replay(ctx context.Context, r request) (*table.Request, error) {
	if r.scope == "" {
		return nil, nil
	}
	it, err := s.cfg.Store.Get(ctx, table.RequestKey(r.scope), store.Strong)
	if err != nil || it == nil {
		return nil, err
	}
	row := table.RequestFrom(r.scope, it)
	if !bytes.Equal(row.Hash, r.hash) {
		return nil, ErrKeyReused
	}
	return &row, nil
}

// MemberChange names a change of a group's membership.
type MemberChange struct {
	Caller    string
	ChatID    string
	UserID    string     // the target; the caller itself in Leave
	Role      table.Role // AddMember: admin or member
	RequestID string
	Cause     event.Cause
}

// AddMember makes a user a member of a group (L-062…L-076). Errors: the package's
// sentinels, and the store's.
func (s *Service) AddMember(ctx context.Context, c MemberChange) (table.Membership, error) {
	if c.Role != table.Admin && c.Role != table.Member {
		return table.Membership{}, fmt.Errorf("%w: role must be admin or member", ErrInvalidArgument)
	}
	req := newRequest("add", c.Caller, c.ChatID, c.RequestID, c.UserID, string(c.Role))
	var out table.Membership
	done, err := s.membership(ctx, c, req, func(v memberView) (*draft, error) {
		if err := v.mayAdd(c); err != nil {
			return nil, err
		}
		d := s.draftMember(v, c)
		// The condition is the row as it was read: a fresh one, or one of a
		// membership that ended.
		cond := store.Absent()
		if v.targetRow != nil {
			cond = store.Condition{}.Eq(table.AttrLeftVersion, store.Int(v.targetRow.LeftVersion))
		}
		if err := d.joined(c.UserID, c.Role, v.chat.History, c.Caller, v.chat.MemberCount+1, cond); err != nil {
			return nil, err
		}
		d.count(1, store.Condition{}.Lt(table.AttrMemberCount, store.Int(MaxMembers)))
		d.request(req)
		out = table.Membership{ChatID: c.ChatID, UserID: c.UserID, Role: c.Role, JoinedAt: d.at, Version: d.head.Version}
		return d, nil
	})
	if done != nil {
		out = table.Membership{ChatID: c.ChatID, UserID: c.UserID, Role: c.Role, JoinedAt: done.CreatedAt, Version: done.Version}
	}
	return out, err
}

// RemoveMember ends another user's membership of a group (L-077…L-087).
func (s *Service) RemoveMember(ctx context.Context, c MemberChange) error {
	return s.remove(ctx, c, newRequest("remove", c.Caller, c.ChatID, c.RequestID, c.UserID), memberView.mayRemove)
}

// Leave ends the caller's own membership of a group (L-088…L-093).
func (s *Service) Leave(ctx context.Context, c MemberChange) error {
	c.UserID = c.Caller
	return s.remove(ctx, c, newRequest("leave", c.Caller, c.ChatID, c.RequestID), memberView.mayLeave)
}

func (s *Service) remove(ctx context.Context, c MemberChange, req request, may func(memberView, MemberChange) error) error {
	_, err := s.membership(ctx, c, req, func(v memberView) (*draft, error) {
		if err := may(v, c); err != nil {
			return nil, err
		}
		d := s.draftMember(v, c)
		md := d.next(event.TypeMembershipChanged)
		d.writes = append(d.writes,
			store.Write{
				Op: store.OpDelete, Key: table.MembershipKey(c.ChatID, c.UserID), Name: condTarget,
				Cond: store.Condition{}.Eq(table.AttrRole, store.String(string(v.target.Role))),
			},
			store.Write{
				Op: store.OpUpdate, Key: table.UserChatKey(c.UserID, c.ChatID), Name: condUser, Cond: isMember(),
				Update: store.Update{Set: []store.Attr{
					{Name: table.AttrLeftVersion, Value: store.Int(d.head.Version)},
					{Name: table.AttrChangedAt, Value: store.Int(d.at)},
					{Name: store.ExpiresAtField, Value: store.Int(d.at/1000 + int64(table.LeftRetention/time.Second))},
				}},
			})
		err := d.record(&eventv1.MembershipChanged{
			Metadata: md, ChatId: c.ChatID, UserId: c.UserID,
			ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED,
			Role:       protoRole(v.target.Role), ChangedBy: c.Caller,
			MemberCountAfter: int32(v.chat.MemberCount - 1), ChangedAt: d.time(),
		})
		if err != nil {
			return nil, err
		}
		d.count(-1, store.Condition{}.Gt(table.AttrMemberCount, store.Int(1)))
		d.request(req)
		return d, nil
	})
	return err
}

// draftMember begins a plan that stands on the caller's role. Where caller and
// target are the same, the write of the target's membership carries the check.
func (s *Service) draftMember(v memberView, c MemberChange) *draft {
	cause := c.Cause
	cause.Actor = c.Caller
	d := s.newDraft(v.head, cause)
	if c.UserID != c.Caller {
		d.writes = append(d.writes, store.Write{
			Op: store.OpCheck, Key: table.MembershipKey(c.ChatID, c.Caller), Name: condCaller,
			Cond: store.Condition{}.Eq(table.AttrRole, store.String(string(v.caller.Role))),
		})
	}
	return d
}

// count changes the member count of the chats row under the conditions that every
// change of the membership has: an active group.
func (d *draft) count(n int64, cond store.Condition) {
	cond = cond.Eq(table.AttrStatus, store.String(string(table.Active))).Eq(table.AttrChatType, store.String(string(table.Group)))
	u := store.Update{Set: []store.Attr{
		{Name: table.AttrUpdatedAt, Value: store.Int(d.at)},
		{Name: table.AttrVersion, Value: store.Int(d.head.Version)},
	}}
	if n != 0 {
		u.Add = []store.Increment{{Name: table.AttrMemberCount, N: n}}
	}
	d.writes = append(d.writes, store.Write{Op: store.OpUpdate, Key: table.ChatKey(d.head.ChatID), Update: u, Cond: cond, Name: condChat})
}

// memberView is what a membership command decides on. The head was read or
// remembered first and the rest afterwards, consistently: if the plan's
// comparison of the head holds, nothing of the rest has changed in between, so
// the counts in events are exact (L-113).
type memberView struct {
	head      table.Head
	chat      table.Chat
	caller    *table.Membership
	target    *table.Membership
	targetRow *table.UserChat
	user      bool // the target exists as a user
}

func (v memberView) may() error {
	switch {
	case v.caller == nil:
		return ErrNotAMember
	case v.chat.Type != table.Group || v.chat.Status != table.Active:
		return ErrInvalidOperation
	}
	return nil
}

func (v memberView) mayAdd(c MemberChange) error {
	if err := v.may(); err != nil {
		return err
	}
	switch {
	case v.caller.Role == table.Member, v.caller.Role == table.Admin && c.Role == table.Admin:
		return ErrForbidden
	case !v.user:
		return ErrUserNotFound
	case v.target != nil:
		return ErrAlreadyMember
	case v.chat.MemberCount >= MaxMembers:
		return ErrChatFull
	}
	return nil
}

func (v memberView) mayRemove(c MemberChange) error {
	if err := v.may(); err != nil {
		return err
	}
	switch {
	case v.caller.Role == table.Member:
		return ErrForbidden
	case c.UserID == c.Caller:
		return ErrInvalidOperation
	case v.target == nil:
		return ErrMemberNotFound
	case v.target.Role == table.Owner:
		return ErrInvalidOperation
	case v.caller.Role == table.Admin && v.target.Role == table.Admin:
		return ErrForbidden
	}
	return nil
}

func (v memberView) mayLeave(MemberChange) error {
	if err := v.may(); err != nil {
		return err
	}
	if v.caller.Role == table.Owner {
		return ErrInvalidOperation
	}
	return nil
}

// membership runs a membership command in the chat's queue: read, decide, plan,
// again if something changed meanwhile. A group that is still being filled is
// completed first, so that a plan never meets a pending member. A request that
// was carried out before is returned.
func (s *Service) membership(ctx context.Context, c MemberChange, req request, plan func(memberView) (*draft, error)) (done *table.Request, _ error) {
	err := s.submit(ctx, c.ChatID, &command{run: func(ctx context.Context) error {
		if err := s.finishPending(ctx, c.ChatID); err != nil {
			return err
		}
		return s.attempt(ctx, c.ChatID, func(head table.Head) (*draft, error) {
			var err error
			if done, err = s.replay(ctx, req); err != nil || done != nil {
				return nil, err
			}
			v, err := s.readMembers(ctx, c, head)
			if err != nil {
				return nil, err
			}
			return plan(v)
		})
	}})
	if err != nil {
		return nil, err // not done: an abandoned command may still be writing it
	}
	return done, nil
}

// attempt makes and runs plans of one chat until one is committed, or make fails
// or wants nothing (a nil draft). It runs in the chat's queue.
func (s *Service) attempt(ctx context.Context, chatID string, make func(table.Head) (*draft, error)) error {
	deadline := s.cfg.Clock().Add(planAge)
	for n := 0; ; n++ {
		head, err := s.head(ctx, chatID)
		if err != nil {
			return err
		}
		d, err := make(head)
		if d == nil || err != nil {
			return err
		}
		err = s.transact(ctx, d.plan())
		failed := conditionError(err)
		if err == nil || (failed != nil && d.isOurs(failed)) {
			s.committed(d)
			return nil
		}
		s.forget(chatID)
		if failed == nil || !s.cfg.Clock().Before(deadline) {
			return err
		}
		if n > 3 {
			if err := s.cfg.Sleep(ctx, time.Duration(n)*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

// isOurs reports whether the plan failed because it had been committed before:
// the version that it gives the head has this plan's stamp and its event, which
// only the event's row can tell apart from another process's.
func (d *draft) isOurs(failed *store.ConditionError) bool {
	f, ok := failed.Failed(condHead)
	if !ok || f.Current == nil || table.HeadFrom("", f.Current).Version < d.head.Version {
		return false
	}
	return d.svc.wrote(d)
}

// wrote reads whether the draft's last event is the one in the store.
func (s *Service) wrote(d *draft) bool {
	last := d.events[len(d.events)-1].GetMetadata()
	it, err := s.cfg.Store.Get(context.Background(), table.EventKey(d.head.ChatID, last.GetVersion()), store.Strong)
	if err != nil {
		return false
	}
	row, err := table.EventFrom(store.Row{Key: table.EventKey(d.head.ChatID, last.GetVersion()), Item: it})
	return err == nil && row.EventID == last.GetEventId()
}

func (s *Service) readMembers(ctx context.Context, c MemberChange, head table.Head) (memberView, error) {
	keys := []store.Key{
		table.ChatKey(c.ChatID), table.UserChatKey(c.UserID, c.ChatID), table.UserKey(c.UserID), table.MembershipKey(c.ChatID, c.UserID),
	}
	if c.UserID != c.Caller {
		keys = append(keys, table.MembershipKey(c.ChatID, c.Caller))
	}
	items, err := s.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return memberView{}, fmt.Errorf("read membership: %w", err)
	}
	v := memberView{head: head, chat: table.ChatFrom(c.ChatID, items[0]), user: items[2] != nil}
	if items[1] != nil {
		row := table.UserChatFrom(c.UserID, c.ChatID, items[1])
		v.targetRow = &row
	}
	member := func(user string, it store.Item) *table.Membership {
		if it == nil {
			return nil
		}
		m := table.MembershipFrom(c.ChatID, user, it)
		return &m
	}
	v.target = member(c.UserID, items[3])
	v.caller = v.target
	if c.UserID != c.Caller {
		v.caller = member(c.Caller, items[4])
	}
	return v, nil
}
