package identitymodule

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/store"
)

// identifiers answers people by their addresses, as texts.
type identifiers struct{ *identifier.Directory }

var _ people.Identifiers = identifiers{}

func newIdentifiers(st store.Store, clock func() time.Time) identifiers {
	return identifiers{identifier.NewDirectory(st, clock)}
}

// Lookup implements people.Identifiers.
func (d identifiers) Lookup(ctx context.Context, text string) (user string, err error) {
	id, err := identifier.Parse(text)
	if err != nil {
		return "", nil //nolint:nilerr // no user has a text that is no identifier
	}
	return d.Directory.Lookup(ctx, id)
}

// OfUser implements people.Identifiers.
func (d identifiers) OfUser(ctx context.Context, user string) (texts []string, err error) {
	list, err := d.Directory.OfUser(ctx, user)
	for _, id := range list {
		texts = append(texts, id.Value())
	}
	return texts, err
}

// unbind frees the identifiers of a user.
func (d identifiers) unbind(ctx context.Context, user string) error {
	list, err := d.Directory.OfUser(ctx, user)
	for _, id := range list {
		if err == nil {
			err = d.Unbind(ctx, user, id)
		}
	}
	return err
}
