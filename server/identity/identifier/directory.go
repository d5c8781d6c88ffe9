package identifier

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// MaxPerUser is the number of identifiers that a user can have.
const MaxPerUser = 10

// Errors of a Directory, besides those of the store.
var (
	ErrTaken   = errors.New("identifier: another user has it")
	ErrTooMany = fmt.Errorf("identifier: a user has at most %d", MaxPerUser)
)

// Names of conditions.
const (
	condFree  = "identifier"
	condCount = "identifiers of the user"
)

// Directory says whose identifiers are.
type Directory struct {
	store *commit.Committer
	clock func() time.Time
}

// NewDirectory makes a Directory.
func NewDirectory(s store.Store, clock func() time.Time) *Directory {
	return &Directory{commit.New(commit.Config{Store: s, Clock: clock, Sleep: wait.For}), clock}
}

// Lookup returns the user who has an identifier; "" if no user has it.
func (d *Directory) Lookup(ctx context.Context, id Identifier) (user string, err error) {
	it, err := d.store.Get(ctx, people.IdentifierKey(id.Key()))
	return people.IdentifierFrom(it).UserID, err
}

// OfUser returns the identifiers of a user, by kind and value.
func (d *Directory) OfUser(ctx context.Context, user string) (list []Identifier, err error) {
	for row, err := range d.store.Partition(ctx, store.Identifiers, people.UserIdentifiers(user)) {
		if err != nil {
			return nil, err
		}
		if id, ok := fromKey(row.Key.SK); ok {
			list = append(list, id)
		}
	}
	return list, nil
}

// Bind gives a user an identifier that was proven. It may be repeated. Errors: ErrTaken,
// ErrTooMany.
func (d *Directory) Bind(ctx context.Context, user string, id Identifier) error {
	switch owner, err := d.Lookup(ctx, id); {
	case err != nil:
		return err
	case owner == user:
		return d.store.Durable(ctx, nil)
	}
	err := d.store.Repeat(ctx, d.BindWrites(user, id)...)
	failed := commit.ConditionError(err)
	if failed == nil {
		return err
	}
	if f, taken := failed.Failed(condFree); taken {
		if people.IdentifierFrom(f.Current).UserID == user { // an attempt whose answer was lost
			return d.store.Durable(ctx, nil)
		}
		return d.store.Durable(ctx, ErrTaken)
	}
	return d.store.Durable(ctx, ErrTooMany)
}

// BindWrites are the writes that give a user an identifier, for a plan that does more. The
// plan fails if another user has it, see Taken, or if the user has too many.
func (d *Directory) BindWrites(user string, id Identifier) []store.Write {
	at := d.clock().UnixMilli()
	return []store.Write{
		{Op: store.OpPut, Key: people.IdentifierKey(id.Key()), Item: people.Identifier{UserID: user, At: at}.Item(),
			Cond: store.Absent(), Name: condFree},
		{Op: store.OpPut, Key: people.UserIdentifierKey(user, id.Key()), Item: people.UserIdentifierItem(at)},
		count(user, 1, store.Condition{}.Ne(people.AttrCount, store.Int(MaxPerUser))),
	}
}

// Taken reports whether a plan failed because a user has the identifier meanwhile.
func Taken(err *store.ConditionError) bool {
	_, taken := err.Failed(condFree)
	return taken
}

// Unbind takes an identifier from a user. It does nothing if the user does not have it.
func (d *Directory) Unbind(ctx context.Context, user string, id Identifier) error {
	err := d.store.Repeat(ctx,
		store.Write{Op: store.OpDelete, Key: people.IdentifierKey(id.Key()),
			Cond: store.Exists().Eq(people.AttrUser, store.String(user)), Name: condFree},
		store.Write{Op: store.OpDelete, Key: people.UserIdentifierKey(user, id.Key())},
		count(user, -1, nil))
	if commit.ConditionError(err) != nil {
		return d.store.Durable(ctx, nil)
	}
	return err
}

// count changes the number of a user's identifiers.
func count(user string, n int64, cond store.Condition) store.Write {
	return store.Write{Op: store.OpUpdate, Key: people.IdentifierCountKey(user), Cond: cond, Name: condCount,
		Update: store.Update{Add: []store.Increment{{Name: people.AttrCount, N: n}}}}
}
