package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

const (
	maxEnds    = 40          // sessions that one plan ends, with two writes each
	leeway     = time.Minute // between the clocks of processes
	sweepPause = 5 * time.Second
	sweepAge   = 3 * time.Second // after which no other call works on it any more
)

// Info is what a user sees of a session.
type Info struct {
	Session, Device        string
	Created, Used, Expires time.Time
}

// List returns the sessions of a user, the one used last first.
func (s *Service) List(ctx context.Context, user string) ([]Info, error) {
	rows, err := s.list(ctx, user)
	if err != nil {
		return nil, err
	}
	list := make([]Info, len(rows))
	for i, r := range rows {
		created, used := time.UnixMilli(r.CreatedAt), time.UnixMilli(r.UsedAt)
		list[i] = Info{Session: r.SessionID, Device: r.Device, Created: created, Used: used, Expires: expiry(created, used)}
	}
	return list, nil
}

// list reads the sessions of a user that have not expired, the one used last first.
func (s *Service) list(ctx context.Context, user string) (rows []people.Session, err error) {
	now := s.cfg.Clock()
	for row, err := range s.store.Partition(ctx, store.Sessions, user) {
		if err != nil {
			return nil, err
		}
		r := people.SessionFrom(row)
		if now.Before(expiry(time.UnixMilli(r.CreatedAt), time.UnixMilli(r.UsedAt))) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b people.Session) int {
		return cmp.Or(cmp.Compare(b.UsedAt, a.UsedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
	return rows, nil
}

// End ends a session of a user: its refresh tokens at once, and then its access tokens and
// streams. It may be repeated. Errors: ErrNotFound, and the Revoker's, after which Run continues.
func (s *Service) End(ctx context.Context, user, session, reason string) error {
	key := people.SessionKey(user, session)
	it, err := s.store.Get(ctx, key)
	if err != nil {
		return err
	}
	gone := ErrNotFound
	if it != nil {
		row := people.SessionFrom(store.Row{Key: key, Item: it})
		for _, spare := range []bool{true, false} {
			ended, writes := s.ends(row, reason, spare)
			if len(writes) == 1 {
				gone = nil // a call that ends the session meanwhile leaves no note either
			} else {
				writes[0].Cond, writes[0].Name = store.Exists(), condSession
			}
			if err = s.store.Repeat(ctx, writes...); err == nil {
				return s.finish(ctx, ended)
			}
			if commit.ConditionError(err) == nil {
				return err
			}
		}
	}
	// Another call ended it before, or an attempt did whose answer was lost.
	if it, err = s.store.Get(ctx, people.EndedSessionKey(session)); err != nil {
		return err
	}
	ended := people.EndedSessionFrom(store.Row{Key: people.EndedSessionKey(session), Item: it})
	if it == nil || ended.UserID != user {
		return s.store.Durable(ctx, gone)
	}
	return s.finish(ctx, ended)
}

// EndEverything ends the sessions of a user, their streams and every access token that was issued
// to the user, and returns the number of sessions. The tokens include those that operators and
// back ends issued, which belong to no session of this package. It may be repeated.
//
// A session named by keep continues. Its access tokens must then stay valid, so that only the
// tokens of the other sessions end. Errors: those of End.
func (s *Service) EndEverything(ctx context.Context, user, keep, reason string) (n int, err error) {
	if keep == "" {
		// The tokens end first: after an error, a caller without an access token can still refresh
		// and repeat the call. A refresh between the two steps issues a token that this revocation
		// does not cover. It belongs to a session that the second step ends.
		now := s.cfg.Clock()
		issuedBefore := now.Add(time.Millisecond) // includes a token that was issued at now
		if err := s.cfg.Revoker.RevokeUser(ctx, user, issuedBefore, now.Add(auth.TokensEnd)); err != nil {
			return 0, err
		}
	}
	rows, err := s.list(ctx, user)
	if err != nil {
		return 0, err
	}
	rows = slices.DeleteFunc(rows, func(r people.Session) bool { return r.SessionID == keep })
	for part := range slices.Chunk(rows, maxEnds) {
		list, err := s.endPart(ctx, part, reason)
		if err != nil {
			return n, err
		}
		n += len(list)
		var errs []error
		for _, e := range list {
			errs = append(errs, s.finish(ctx, e))
		}
		if err := errors.Join(errs...); err != nil {
			return n, err
		}
	}
	return n, nil
}

// endPart ends at most maxEnds sessions in one plan.
func (s *Service) endPart(
	ctx context.Context, rows []people.Session, reason string,
) (list []people.EndedSession, err error) {
	for _, spare := range []bool{true, false} {
		list = nil
		var plan []store.Write
		for _, r := range rows {
			ended, writes := s.ends(r, reason, spare)
			list, plan = append(list, ended), append(plan, writes...)
		}
		if err = s.store.Repeat(ctx, plan...); commit.ConditionError(err) == nil {
			break // else one of them was used just now
		}
	}
	return list, err
}

// ends are the writes that end a session, the removal of its row first. Where spare is set, one
// that was not used for so long that its access tokens have expired is removed alone, if it
// still was not: every other one is reported to all processes, which costs them.
func (s *Service) ends(row people.Session, reason string, spare bool) (people.EndedSession, []store.Write) {
	now := s.cfg.Clock()
	e := people.EndedSession{SessionID: row.SessionID, UserID: row.UserID, Reason: reason, At: now.UnixMilli()}
	remove := store.Write{Op: store.OpDelete, Key: people.SessionKey(row.UserID, row.SessionID)}
	last := time.UnixMilli(row.UsedAt).Add(Grace) // access token
	if spare && !now.Before(last.Add(AccessTime+leeway)) {
		remove.Cond, remove.Name = store.Exists().Eq(people.AttrHash, store.Bytes(row.Hash)), condSession
		return e, []store.Write{remove}
	}
	until := now.Add(AccessTime + leeway)
	e.Until, e.ExpiresAt = until.UnixMilli(), until.Unix()+1
	// On a full disk too: a session must end when its user asks for it, and the row is removed by finish.
	return e, []store.Write{remove,
		{Op: store.OpPut, Key: people.EndedSessionKey(row.SessionID), Item: e.Item(), Frees: true}}
}

// finish has the access tokens of an ended session refused, and forgets it then.
func (s *Service) finish(ctx context.Context, e people.EndedSession) error {
	needsRevocation := e.Until != 0
	if needsRevocation {
		if err := s.cfg.Revoker.RevokeSession(ctx, e.SessionID, time.UnixMilli(e.Until)); err != nil {
			return err
		}
	}
	s.cfg.Record(ctx, securitylog.Event{Kind: securitylog.SessionEnded, User: e.UserID, Session: e.SessionID,
		Reason: e.Reason})
	if !needsRevocation {
		return nil
	}
	return s.store.Repeat(ctx, store.Write{Op: store.OpDelete, Key: people.EndedSessionKey(e.SessionID)})
}

// Sweep finishes what processes began that ended in between, and returns how many sessions
// that were.
func (s *Service) Sweep(ctx context.Context) (n int, err error) {
	var errs []error
	for row, err := range s.store.Partition(ctx, store.Sessions, people.EndedSessions) {
		if err != nil {
			return n, err
		}
		e := people.EndedSessionFrom(row)
		if s.cfg.Clock().Sub(time.UnixMilli(e.At)) < sweepAge {
			continue
		}
		if err := s.finish(ctx, e); err != nil {
			errs = append(errs, err)
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

// Run sweeps until ctx ends.
func (s *Service) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn("sessions that have ended cannot be finished", "error", err)
		}
		if err := wait.For(ctx, sweepPause); err != nil {
			return nil //nolint:nilerr // the end
		}
	}
}
