package people

import (
	"context"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Handles that look alike are one person's: they are compared in a form without the dots and
// underscores, and with digits that look like letters as these.
var (
	alike = strings.NewReplacer(".", "", "_", "", "0", "o", "1", "l")
	// readAs are letters for which people write digits, one of them for two.
	readAs = [...]*strings.Replacer{
		strings.NewReplacer("0", "o", "1", "i", "3", "e", "4", "a", "5", "s", "7", "t"),
		strings.NewReplacer("0", "o", "1", "l", "3", "e", "4", "a", "5", "s", "7", "t"),
	}
)

// formOf is what handles that look alike have in common.
func formOf(handle string) string { return alike.Replace(handle) }

// SetHandle gives a user a handle and returns the profile. Errors: ErrHandleReserved,
// ErrHandleTaken, also for one that looks like another, ErrHandleTooSoon, ErrUnknown, and the
// store's.
func (s *Service) SetHandle(ctx context.Context, user, handle string) (Profile, error) {
	handle = strings.ToLower(handle)
	if isReserved(handle) {
		return Profile{}, ErrHandleReserved
	}
	return s.change(ctx, user, func(p, _ Profile) (Profile, []store.Write, error) {
		if p.Handle == handle {
			return p, nil, nil
		}
		at := s.now()
		if p.HandleAt != 0 && at < p.HandleAt+HandleEvery.Milliseconds() {
			return p, nil, ErrHandleTooSoon
		}
		var writes []store.Write
		if p.Handle == "" || formOf(p.Handle) != formOf(handle) {
			taken, err := s.takeHandle(ctx, user, formOf(handle))
			if err != nil {
				return p, nil, err
			}
			writes = append(s.releaseHandle(p, at), taken)
		}
		p.Handle, p.HandleAt = handle, at
		return p, writes, nil
	})
}

// takeHandle makes the write that gives a user the handles of a form, if no other user has
// one or holds it.
func (s *Service) takeHandle(ctx context.Context, user, form string) (store.Write, error) {
	it, err := s.commits.Get(ctx, rows.HandleKey(form))
	if err != nil {
		return store.Write{}, err
	}
	free := store.Absent()
	if it != nil {
		h := rows.HandleFrom(it)
		if h.UserID != user || h.HeldSince == 0 {
			return store.Write{}, ErrHandleTaken
		}
		free = store.Condition{}.Eq(rows.AttrUser, store.String(user)).Eq(rows.AttrHeldSince, store.Int(h.HeldSince))
	}
	return put("handle", free, rows.HandleKey(form), rows.Handle{UserID: user}.Item()), nil
}

// releaseHandle gives up the handle of a profile, if it has one: it is held for a time.
func (s *Service) releaseHandle(p Profile, at int64) []store.Write {
	if p.Handle == "" {
		return nil
	}
	inUse := store.Condition{}.Eq(rows.AttrUser, store.String(p.UserID)).Without(rows.AttrHeldSince)
	return []store.Write{put("held", inUse, rows.HandleKey(formOf(p.Handle)),
		rows.Handle{UserID: p.UserID, HeldSince: at, ExpiresAt: seconds(at, HandleHeld)}.Item())}
}

// Handles that would seem to speak for the service: whole ones, and words that no handle has
// as one of its parts.
var (
	reservedWhole = strings.Fields(`account accounts all anonymous api app bot channel contact deleted everyone everybody
		help here info legal mail me nobody noreply null operator owner press privacy sales server service services
		settings signin signup status team terms test trust undefined unknown user users verify www you`)
	reservedPart = strings.Fields(`abuse admin admins administrator helpdesk mod moderator moderators mods official
		postmaster root security staff support system verified webmaster`)
)

// isReserved reports whether a handle in lower case would seem to speak for the service, as
// it is or with digits read as letters, a word that no handle has also with a number.
func isReserved(handle string) bool {
	parts := strings.FieldsFunc(handle, func(r rune) bool { return r == '.' || r == '_' })
	whole := strings.Join(parts, "")
	for _, r := range readAs {
		if text := r.Replace(whole); strings.Contains(text, "parley") || slices.Contains(reservedWhole, text) {
			return true
		}
	}
	return slices.ContainsFunc(append(parts, whole), func(word string) bool {
		return slices.Contains(reservedPart, strings.TrimRight(word, "0123456789")) ||
			slices.Contains(reservedPart, readAs[0].Replace(word)) || slices.Contains(reservedPart, readAs[1].Replace(word))
	})
}

// FindByHandle returns the profile of the user who has a handle. Errors: ErrUnknown, also
// if that user has blocked the caller, and the store's.
func (s *Service) FindByHandle(ctx context.Context, caller, handle string) (Profile, error) {
	handle = strings.ToLower(handle)
	it, err := s.commits.Get(ctx, rows.HandleKey(formOf(handle)))
	if err != nil {
		return Profile{}, err
	}
	h := rows.HandleFrom(it)
	if h.HeldSince != 0 {
		h.UserID = ""
	}
	return s.find(ctx, caller, h.UserID, func(_ rows.Access, p Profile) bool { return p.Handle == handle })
}
