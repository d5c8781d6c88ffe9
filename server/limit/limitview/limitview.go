// Package limitview shows operators the limits of rates, and what a caller has left.
//
// It owns the names that operators use for the subjects of a limit: addresses as they are in
// logs, with or without the length of a network. It does not charge these subjects. Limits
// and buckets are package limit's.
//
// Concurrency: a View is safe for concurrent use.
package limitview

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/identity/admin"
	"github.com/parley-chat/parley/server/limit"
)

// View shows limits.
type View struct{ limits *limit.Limiter }

var _ admin.Limits = View{}

// New makes a View.
func New(l *limit.Limiter) View { return View{l} }

// All implements admin.Limits. Rules that are off are no limits.
func (v View) All() (list []admin.Limit, sharedAway bool) {
	for _, r := range v.limits.Rules() {
		if !r.Off {
			list = append(list, admin.Limit{Name: string(r.Name), Key: string(r.By), Rate: float64(r.Count), Period: r.Per,
				Burst: int64(r.Burst), FailsClosed: r.Closed})
		}
	}
	return list, v.limits.SharedAway()
}

// State implements admin.Limits.
func (v View) State(
	ctx context.Context, name, key string,
) (remaining int64, retryAfter time.Duration, err error) {
	for _, r := range v.limits.Rules() {
		if string(r.Name) != name || r.Off {
			continue
		}
		d, err := v.limits.Peek(ctx, r.Name, cmp.Or(limit.KeyOf(r.By, key), key))
		if errors.Is(err, limit.ErrNoRule) {
			err = admin.ErrNoLimit
		}
		return int64(d.Remaining), d.RetryAfter, err
	}
	return 0, 0, admin.ErrNoLimit
}
