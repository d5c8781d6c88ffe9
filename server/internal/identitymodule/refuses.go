package identitymodule

import (
	"context"
	"errors"
	"strings"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/store/table"
)

// Refuses reports whether a user has no access now: an account that is suspended or deleted, or a service account
// that has ended. It reads the store: the gate forgets a revocation once the tokens that it covers have expired.
func (p *Module) Refuses(ctx context.Context, user string) (bool, error) {
	if id, ok := strings.CutPrefix(user, auth.ServiceUserPrefix); ok {
		a, _, err := p.accounts.Get(ctx, id)
		if errors.Is(err, service.ErrNotFound) {
			return true, nil
		}
		return a.Disabled, err
	}
	status, err := p.people.Status(ctx, user)
	if errors.Is(err, people.ErrUnknown) { // not there yet
		return false, nil
	}
	return err == nil && status != table.Active, err
}
