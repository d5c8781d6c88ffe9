package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Own asks for a change of what a chat holds for the caller alone.
type Own struct {
	Caller     string
	ChatID     string
	MutedUntil *int64 // unix ms, in the future; 0: not muted; nil leaves it
	Archived   *bool  // nil leaves it
	Procedure  string // of the API, under which RequestID is remembered
	RequestID  string
}

// OwnState is a user's row of a chat, with the head that it was measured by.
type OwnState struct {
	Row      table.UserChat
	Head     table.Head
	Replayed bool // the request was carried out before; Row is the present one
}

// SetOwn mutes a chat, or puts it away, for the caller (L-106, L-140). It is
// allowed in every chat, touches only the caller's row, and no other member hears
// of it. Errors: ErrInvalidArgument, ErrNotAMember, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) SetOwn(ctx context.Context, r Own) (OwnState, error) {
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return OwnState{}, err
	}
	if err := checkChat(r.ChatID); err != nil {
		return OwnState{}, err
	}
	if !isID(r.Procedure) {
		return OwnState{}, fmt.Errorf("%w: a procedure has 1 to 64 letters", ErrInvalidArgument)
	}
	o := plan.Own{
		Caller: r.Caller, ChatID: r.ChatID, MutedUntil: r.MutedUntil, Archived: r.Archived,
		Request: plan.NewRequest(r.Procedure, r.Caller, r.ChatID, r.RequestID, plan.OwnContent(r.MutedUntil, r.Archived)...),
	}
	if err := s.enter(r.Caller, r.ChatID); err != nil {
		return OwnState{}, err
	}
	defer s.door.Leave(r.Caller, r.ChatID)
	s.clock.Keep(ctx, s.transact)
	for pace := s.pacer(); ; {
		out, own, err := s.readOwn(ctx, o)
		if err != nil || out.Replayed {
			return out, open("request_id", r.RequestID, err)
		}
		if m := r.MutedUntil; m != nil && *m != 0 && (*m <= s.cfg.Clock().UnixMilli() || *m > table.Forever) {
			return OwnState{}, fmt.Errorf("%w: a chat is muted until a time in the future", ErrInvalidArgument)
		}
		// Always later than before, so that the comparison of the old time notices
		// every other change, those of releases that do not count them too.
		out.Row = o.Apply(own, s.stamp(max(own.ChangedAt+1, out.Head.ChangedAt)))
		err = s.repeat(ctx, o.Plan(own, out.Row, out.Head)...)
		if err == nil {
			s.cfg.Receipt(out.Row, out.Head)
			return out, nil
		}
		if conditionError(err) == nil {
			return OwnState{}, open("request_id", r.RequestID, err)
		}
		// The row or the request is another by now, the latter perhaps by an attempt
		// of this call whose outcome was unknown: read again.
		if err := pace.again(ctx, ctx); err != nil {
			return OwnState{}, err
		}
	}
}

// readOwn reads what a change of a user's own row begins with. The row comes last:
// it decides whether the head may be told.
func (s *Service) readOwn(ctx context.Context, o plan.Own) (OwnState, table.UserChat, error) {
	fail := func(err error) (OwnState, table.UserChat, error) { return OwnState{}, table.UserChat{}, err }
	keys := []store.Key{table.HeadKey(o.ChatID)}
	if o.Request.Scope != "" {
		keys = append(keys, table.RequestKey(o.Request.Scope))
	}
	items, err := s.batchGet(ctx, keys)
	if err != nil {
		return fail(err)
	}
	it, err := s.get(ctx, table.UserChatKey(o.Caller, o.ChatID))
	if err != nil {
		return fail(err)
	}
	row := table.UserChatFrom(o.Caller, o.ChatID, it)
	if items[0] == nil || it == nil || row.Left() {
		return fail(s.durable(ctx, ErrNotAMember))
	}
	if err := s.addRole(ctx, &row); err != nil {
		return fail(err)
	}
	out := OwnState{Head: table.HeadFrom(o.ChatID, items[0])}
	if len(items) == 1 || items[1] == nil {
		return out, row, nil
	}
	if _, err := o.Request.Replay(items[1]); err != nil {
		return fail(s.durable(ctx, err))
	}
	out.Row, out.Replayed = row, true
	if err := s.durable(ctx, nil); err != nil {
		return fail(err)
	}
	// Perhaps the process that carried it out died before it told anybody.
	s.cfg.Receipt(row, out.Head)
	return out, row, nil
}
