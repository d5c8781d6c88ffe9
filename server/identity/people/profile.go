package people

import (
	"context"
	"slices"
	"strconv"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Profile is what a person shows.
type Profile = rows.Profile

// ProfileChange has the changes of a profile; a field that is nil stays.
type ProfileChange struct {
	DisplayName, Avatar, About *string
	Etag                       string // that the profile must have; empty: any
}

// Known asks for a profile, unless it has this version; -1: in any version.
type Known struct {
	UserID  string
	Version int64
}

// Etag names the version of a profile.
func Etag(p Profile) string { return "v" + strconv.FormatInt(p.Version, 10) }

// Get returns the profile of a user. Errors: ErrUnknown, and the store's.
func (s *Service) Get(ctx context.Context, user string) (Profile, error) {
	found, err := s.Batch(ctx, []Known{{user, -1}})
	if err == nil && len(found) == 0 {
		err = s.commits.Durable(ctx, ErrUnknown)
	}
	if err != nil {
		return Profile{}, err
	}
	return found[0], nil
}

// Batch returns profiles of up to MaxBatch users, in their order, without those whose
// version is known and those of users who do not exist.
func (s *Service) Batch(ctx context.Context, wanted []Known) ([]Profile, error) {
	seen := map[string]bool{}
	wanted = slices.DeleteFunc(slices.Clone(wanted), func(k Known) bool {
		again := seen[k.UserID]
		seen[k.UserID] = true
		return again
	})
	found := make([]Profile, 0, len(wanted))
	for part := range slices.Chunk(wanted, store.MaxBatchGet/2) {
		keys := make([]store.Key, 0, 2*len(part))
		for _, k := range part {
			keys = append(keys, table.UserKey(k.UserID), rows.ProfileKey(k.UserID))
		}
		items, err := s.commits.BatchGet(ctx, keys)
		if err != nil {
			return nil, err
		}
		for i, k := range part {
			p := rows.ProfileFrom(k.UserID, items[2*i+1])
			if items[2*i] != nil && p.Version != k.Version {
				found = append(found, p)
			}
		}
	}
	return found, s.commits.Durable(ctx, nil)
}

// Update changes a profile and returns it. A change that changes nothing has no version.
// Errors: ErrEtag, ErrUnknown, and the store's.
func (s *Service) Update(ctx context.Context, user string, c ProfileChange) (Profile, error) {
	return s.change(ctx, user, func(p, tried Profile) (Profile, []store.Write, error) {
		if c.Etag != "" && c.Etag != Etag(p) && (tried.Version == 0 || p != tried) {
			return p, nil, ErrEtag
		}
		for to, from := range map[*string]*string{&p.DisplayName: c.DisplayName, &p.Avatar: c.Avatar, &p.About: c.About} {
			if from != nil {
				*to = *from
			}
		}
		return p, nil, nil
	})
}

// change changes a profile as decide says, which gets it as it is and as the attempt before
// would have left it, and may add writes. Streams are notified of the new version.
func (s *Service) change(
	ctx context.Context, user string, decide func(p, tried Profile) (Profile, []store.Write, error),
) (Profile, error) {
	var next Profile
	err := s.repeat(ctx, func() ([]store.Write, error) {
		before, err := s.profile(ctx, user)
		if err != nil {
			return nil, err
		}
		after, more, err := decide(before, next)
		if err != nil || (after == before && len(more) == 0) {
			next = before
			return nil, err
		}
		at := s.now()
		after.Version, after.UpdatedAt = before.Version+1, at
		next = after
		return append(more, s.profileWrites(before, after)...), nil
	})
	if err != nil {
		return Profile{}, err
	}
	s.announce(ctx, changeOf(next))
	return next, nil
}

// profile reads the profile of an account that is not deleted.
func (s *Service) profile(ctx context.Context, user string) (Profile, error) {
	items, err := s.commits.BatchGet(ctx, []store.Key{table.UserKey(user), rows.ProfileKey(user)})
	if err != nil {
		return Profile{}, err
	}
	p := rows.ProfileFrom(user, items[1])
	if a := rows.AccessFrom(items[0]); !a.Exists || a.Deleted() || p.Deleted {
		return p, ErrUnknown
	}
	return p, nil
}

// profileWrites replaces a profile, if it is as it was read, and announces that.
func (s *Service) profileWrites(before, after Profile) []store.Write {
	cond := store.Absent()
	if before.Version > 0 {
		cond = store.Condition{}.Eq(rows.AttrVersion, store.Int(before.Version))
	}
	c := changeOf(after)
	return []store.Write{
		put("profile", cond, rows.ProfileKey(after.UserID), after.Item()),
		{Op: store.OpPut, Key: c.Key(), Item: c.Item()},
	}
}

// FindByIdentifier returns the profile of the user who has an identifier and allows lookup
// by it. Errors: ErrUnknown, also if the user does not allow lookup or has blocked the
// caller, ErrNoIdentifiers, and the store's.
func (s *Service) FindByIdentifier(ctx context.Context, caller, identifier string) (Profile, error) {
	if s.cfg.Identifiers == nil {
		return Profile{}, ErrNoIdentifiers
	}
	user, err := s.cfg.Identifiers.Lookup(ctx, identifier)
	if err != nil {
		return Profile{}, err
	}
	return s.find(ctx, caller, user, func(a rows.Access, _ Profile) bool { return a.Findable })
}

// somebody stands for a user who was not found: it causes the same reads.
const somebody = "~"

// find returns the profile of a user, which may be empty for none, to a caller. It makes
// the same reads for every result: their duration must not reveal which users exist.
func (s *Service) find(
	ctx context.Context, caller, user string, allows func(rows.Access, Profile) bool,
) (Profile, error) {
	key := user
	if key == "" {
		key = somebody
	}
	items, err := s.commits.BatchGet(ctx,
		[]store.Key{table.UserKey(key), rows.ProfileKey(key), rows.BlockKey(key, caller)})
	if err != nil {
		return Profile{}, err
	}
	a, p := rows.AccessFrom(items[0]), rows.ProfileFrom(user, items[1])
	if user == "" || !a.Exists || a.Deleted() || a.Status == rows.Suspended || items[2] != nil || !allows(a, p) {
		return Profile{}, s.commits.Durable(ctx, ErrUnknown)
	}
	return p, s.commits.Durable(ctx, nil)
}
