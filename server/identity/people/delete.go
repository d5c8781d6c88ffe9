package people

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Times of a deletion.
const (
	sweepEvery = 30 * time.Second
	// claimed is how long a deletion is the process's that has taken it, which takes it again
	// on the way. If that process has ended, another one continues its deletions after this
	// time.
	claimed = time.Minute
	// settled is how long after a deletion the last sweep is: by then no group is created
	// any more whose members were checked before it.
	settled = 15 * time.Minute
	// A failed deletion is tried again after this, then after twice as long, and so on.
	firstRetry = time.Minute
	lastRetry  = 6 * time.Hour
)

// RecentSignIn is how long ago at most a user who deletes an account has signed in.
const RecentSignIn = 10 * time.Minute

// Recent refuses an irreversible call of a user who signed in too long ago, by the start of
// the session. A token that is of no session here counts from when it was made. Errors:
// ErrSignInTooOld, and the store's.
func (s *Service) Recent(ctx context.Context, user, session string, issued time.Time) error {
	began := issued.UnixMilli()
	if session != "" {
		key := rows.SessionKey(user, session)
		it, err := s.commits.Get(ctx, key)
		if err != nil {
			return err
		}
		if it != nil {
			began = rows.SessionFrom(store.Row{Key: key, Item: it}).CreatedAt
		}
	}
	if s.now()-began > RecentSignIn.Milliseconds() {
		return s.commits.Durable(ctx, ErrSignInTooOld)
	}
	return nil
}

// Delete deletes an account. With it the profile is a tombstone, the handle is held, the
// settings are gone, and no plan makes the user a member of anything; the rest follows
// (Sweep). Messages stay in their chats. It changes nothing for an account that is deleted.
// Errors: ErrNotConfirmed, ErrUnknown for a user who never existed, and the store's.
func (s *Service) Delete(ctx context.Context, user, confirm string) error {
	if user != confirm {
		return ErrNotConfirmed
	}
	var after Profile
	err := s.repeat(ctx, func() ([]store.Write, error) {
		items, err := s.commits.BatchGet(ctx, []store.Key{table.UserKey(user), rows.ProfileKey(user)})
		if err != nil {
			return nil, err
		}
		access, before := rows.AccessFrom(items[0]), rows.ProfileFrom(user, items[1])
		switch {
		case !access.Exists:
			return nil, ErrUnknown
		case access.Deleted():
			after = before
			return nil, nil
		}
		at := s.now()
		after = Profile{UserID: user, Deleted: true, Version: before.Version + 1, UpdatedAt: at}
		writes := []store.Write{
			update("user", there(), table.UserKey(user), store.Update{
				Set: []store.Attr{
					{Name: rows.AttrDeletedAt, Value: store.Int(at)},
					{Name: table.AttrStatus, Value: store.String(string(rows.Deleted))},
				},
				Remove: []string{rows.AttrFindable, rows.AttrWhoAdds},
			}),
			{Op: store.OpPut, Key: rows.DeletionKey(user), Item: rows.Deletion{At: at, NextAt: at}.Item()},
		}
		return slices.Concat(writes, s.profileWrites(before, after), s.releaseHandle(before, at)), nil
	})
	if err != nil {
		return err
	}
	s.announce(ctx, changeOf(after))
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// processDeletions carries deletions out until ctx ends.
func (s *Service) processDeletions(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-ticker.C:
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Failed("carry deletions out", err)
		}
	}
}

// Sweep carries out deletions of which something is to be done and that no other process
// works on. Any process may call it at any time; doing a part twice changes nothing. A
// failure of one deletion does not stop the others, and a later call tries it again.
func (s *Service) Sweep(ctx context.Context) error {
	var (
		failed  []error
		failing int64
	)
	for row, err := range s.query(ctx, rows.Deletions()) {
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		d := rows.DeletionFrom(row)
		if s.now() < d.NextAt {
			if d.Tries > 0 {
				failing++
			}
		} else if err := s.carryOut(ctx, d); err != nil && !errors.Is(err, errTaken) {
			failing++
			failed = append(failed, fmt.Errorf("deletion of an account: %w", err))
		}
	}
	s.failing.Store(failing)
	return errors.Join(failed...)
}

// FailingDeletions is the number of deletions that failed when they were tried last, in any
// process, as the last Sweep of this one has found. They are tried again for good.
func (s *Service) FailingDeletions() int64 { return s.failing.Load() }

// errTaken says that another process works on a deletion, or has completed it.
var errTaken = errors.New("people: another process carries this deletion out")

// carryOut takes a deletion, removes what is left, and notes when it is worked on next.
func (s *Service) carryOut(ctx context.Context, d rows.Deletion) error {
	last := s.now() >= d.At+settled.Milliseconds()
	if err := s.take(ctx, &d, claimed, d.Tries); err != nil {
		return err
	}
	switch err := s.sweep(ctx, &d); {
	case errors.Is(err, errTaken):
		return err
	case err != nil:
		after := lastRetry
		if d.Tries < 10 {
			after = min(lastRetry, firstRetry<<d.Tries)
		}
		return errors.Join(err, s.take(ctx, &d, after, d.Tries+1))
	case !last:
		until := time.Duration(d.At+settled.Milliseconds()-s.now()) * time.Millisecond
		return s.take(ctx, &d, until, 0)
	}
	err := s.commits.Repeat(ctx, store.Write{Op: store.OpDelete, Key: rows.DeletionKey(d.UserID), Name: "deletion",
		Cond: store.Condition{}.Eq(rows.AttrNextAt, store.Int(d.NextAt))})
	if commit.ConditionError(err) != nil {
		return errTaken // or an attempt whose outcome was unknown has removed it
	}
	return err
}

// take sets when a deletion is worked on next, after some time, if no other process has
// done so since it was read. Errors: errTaken, and the store's.
func (s *Service) take(ctx context.Context, d *rows.Deletion, after time.Duration, tries int64) error {
	next := *d
	next.NextAt, next.By, next.Tries = s.now()+after.Milliseconds(), s.id, tries
	key := rows.DeletionKey(d.UserID)
	err := s.commits.Repeat(ctx, put("deletion", store.Condition{}.Eq(rows.AttrNextAt, store.Int(d.NextAt)), key,
		next.Item()))
	if failed := commit.ConditionError(err); failed != nil {
		f, _ := failed.Failed("deletion")
		if rows.DeletionFrom(store.Row{Key: key, Item: f.Current}) != next { // by an attempt whose outcome was unknown
			return errTaken
		}
		err = nil
	}
	if err == nil {
		*d = next
	}
	return err
}

// sweep removes what is left of a deleted account: first its ways to sign in and its
// personal data, then the memberships.
func (s *Service) sweep(ctx context.Context, d *rows.Deletion) error {
	var failed []error
	for _, erase := range s.cfg.Erase {
		failed = append(failed, erase(ctx, d.UserID))
	}
	return errors.Join(append(failed, s.dropRows(ctx, d.UserID), s.leaveChats(ctx, d))...)
}

// leaveChats ends the memberships of a deleted account in groups, and closes its direct
// chats: the other person keeps the chat, and neither can send any more. A chat that cannot
// be left does not delay the others; the remaining chats are in the account's list of
// chats.
func (s *Service) leaveChats(ctx context.Context, d *rows.Deletion) error {
	var first error
	left := 0
	for row, err := range s.commits.Partition(ctx, store.DeliveryState, d.UserID) {
		if err != nil {
			return err
		}
		if rows.Closed(row.Item) || table.UserChatFrom(d.UserID, row.Key.SK, row.Item).Left() {
			continue
		}
		if 2*(d.NextAt-s.now()) < claimed.Milliseconds() {
			if err := s.take(ctx, d, claimed, d.Tries); err != nil {
				return err
			}
		}
		if err := s.leave(ctx, d.UserID, row.Key.SK); err != nil {
			if left++; first == nil {
				first = fmt.Errorf("leave %s: %w", row.Key.SK, err)
			}
		}
	}
	if left > 1 {
		return fmt.Errorf("%d chats are left: %w", left, first)
	}
	return first
}

// leave ends what a deleted account has in one chat.
func (s *Service) leave(ctx context.Context, user, id string) error {
	it, err := s.commits.Get(ctx, table.ChatKey(id))
	if err != nil {
		return err
	}
	row := table.ChatFrom(id, it)
	if row.Type != table.Direct {
		return s.cfg.Chats.Depart(ctx, user, id)
	}
	closed := store.Update{Set: []store.Attr{{Name: rows.AttrClosed, Value: store.Bool(true)}}}
	var writes []store.Write
	for _, one := range row.DirectUsers {
		writes = append(writes, update("member", store.Exists(), table.UserChatKey(one, id), closed))
	}
	return s.commits.Repeat(ctx, writes...)
}

// dropRows removes block list and invitations of a deleted account. The profile stays, as a
// tombstone.
func (s *Service) dropRows(ctx context.Context, user string) error {
	var writes []store.Write
	for _, q := range []store.Query{rows.Blocks(user), rows.Invitations(user)} {
		for row, err := range s.query(ctx, q) {
			if err != nil {
				return err
			}
			writes = append(writes, store.Write{Op: store.OpDelete, Key: row.Key})
		}
	}
	for part := range slices.Chunk(writes, store.MaxBatchWrite) {
		call, cancel := context.WithTimeout(ctx, store.CallTimeout)
		err := s.cfg.Store.BatchWrite(call, part)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
