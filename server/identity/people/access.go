package people

import (
	"cmp"
	"context"
	"iter"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Settings are what a user allows others.
type Settings struct {
	WhoAdds  rows.WhoAdds
	Findable bool
}

// Settings returns the settings of a user. Errors: ErrUnknown, and the store's.
func (s *Service) Settings(ctx context.Context, user string) (Settings, error) {
	a, err := s.access(ctx, user)
	return Settings{a.WhoAdds, a.Findable}, s.commits.Durable(ctx, err)
}

// SetSettings changes settings, those that are given, and returns them. Errors: ErrUnknown,
// and the store's.
func (s *Service) SetSettings(
	ctx context.Context, user string, who *rows.WhoAdds, findable *bool,
) (after Settings, err error) {
	err = s.repeat(ctx, func() ([]store.Write, error) {
		a, err := s.access(ctx, user)
		if err != nil {
			return nil, err
		}
		after = Settings{a.WhoAdds, a.Findable}
		if who != nil {
			after.WhoAdds = *who
		}
		if findable != nil {
			after.Findable = *findable
		}
		if after == (Settings{a.WhoAdds, a.Findable}) {
			return nil, nil
		}
		var u store.Update
		if after.WhoAdds != rows.Everybody {
			u.Set = append(u.Set, store.Attr{Name: rows.AttrWhoAdds, Value: store.String(string(after.WhoAdds))})
		} else {
			u.Remove = append(u.Remove, rows.AttrWhoAdds)
		}
		if after.Findable {
			u.Set = append(u.Set, store.Attr{Name: rows.AttrFindable, Value: store.Bool(true)})
		} else {
			u.Remove = append(u.Remove, rows.AttrFindable)
		}
		cond := a.Unchanged(store.Exists())
		if a.Findable {
			cond = cond.Eq(rows.AttrFindable, store.Bool(true))
		} else {
			cond = cond.Without(rows.AttrFindable)
		}
		return []store.Write{update("user", cond, table.UserKey(user), u)}, nil
	})
	return after, err
}

// Status returns the status of a user: table.Active, people.Suspended or people.Deleted of
// the rows. Errors: ErrUnknown for a user who never existed, and the store's.
func (s *Service) Status(ctx context.Context, user string) (table.Status, error) {
	it, err := s.commits.Get(ctx, table.UserKey(user))
	if err != nil {
		return "", err
	}
	a := rows.AccessFrom(it)
	switch {
	case !a.Exists:
		err = ErrUnknown
	case a.Deleted():
		a.Status = rows.Deleted
	}
	return cmp.Or(a.Status, table.Active), s.commits.Durable(ctx, err)
}

// Suspend takes a user out of use until Restore. The caller ends the user's sessions and
// streams. It changes nothing for a user who is suspended. Errors: ErrUnknown, also for a
// deleted account, and the store's.
func (s *Service) Suspend(ctx context.Context, user string) error {
	return s.setStatus(ctx, user, rows.Suspended)
}

// Restore ends a suspension. Errors: ErrUnknown, also for a deleted account, and the store's.
func (s *Service) Restore(ctx context.Context, user string) error {
	return s.setStatus(ctx, user, table.Active)
}

func (s *Service) setStatus(ctx context.Context, user string, to table.Status) error {
	return s.repeat(ctx, func() ([]store.Write, error) {
		a, err := s.access(ctx, user)
		if err != nil || cmp.Or(a.Status, table.Active) == to {
			return nil, err
		}
		w := update("user", there(), table.UserKey(user), store.Update{
			Set: []store.Attr{{Name: table.AttrStatus, Value: store.String(string(to))}}})
		w.Frees = true // an operator must be able to suspend the user who has filled the disk
		return []store.Write{w}, nil
	})
}

// query reads the rows of a query, page by page. It ends after an error.
func (s *Service) query(ctx context.Context, q store.Query) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		for {
			page, err := s.page(ctx, q)
			if err != nil {
				yield(store.Row{}, err)
				return
			}
			for _, row := range page.Rows {
				if !yield(row, nil) {
					return
				}
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				return
			}
		}
	}
}

func (s *Service) page(ctx context.Context, q store.Query) (store.Page, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	return s.cfg.Store.Query(call, q)
}
