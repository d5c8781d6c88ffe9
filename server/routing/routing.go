// Package routing records which process holds the streams of which users.
//
// It owns the rows of that table, the lease that keeps a process's rows alive, the shared cache
// of member lists, and the channel on which processes nudge relays. It owns no durable state: all
// of it may be lost at any time, and [Lease] restores it. It does not own streams (package
// delivery) or what is sent over links (package link).
//
// # Rows and leases
//
// A process that holds streams claims a lease for its [Server], and puts a row for each user. A
// row names the server and the epoch of its lease, and counts only while that very lease is
// held: one key decides whether all rows of a process are valid. A lease is renewed only if it
// is still held, never by a blind set. A process that has lost its lease claims a new epoch,
// puts all its rows again, and only then resynchronises its streams: later commits find the
// rows, and the streams read earlier commits.
//
// A row is put, and acknowledged, before its stream reads anything. So a
// process that commits a change and then looks up the users finds the row, or the
// stream's reads find the change.
//
// # Concurrency
//
// Everything here is safe for use by many goroutines.
package routing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Limits of what is accepted from Redis and from callers.
const (
	MaxServers = 1 << 10 // of the table, and of one user
	MaxLookup  = 1 << 12 // users of one lookup
	MaxMembers = 1 << 10 // of a cached list
	MaxNudge   = 1 << 20 // bytes
	MaxShards  = 1 << 10 // of one subscription
)

// Server is a process that holds streams.
type Server struct {
	ID         string // of the process: no other one had it before
	Addr       string // where other processes reach it, host:port
	Generation string // of its store
	Epoch      uint64 // of its lease: grows each time the lease is lost
}

// String names the server and its epoch.
func (s Server) String() string { return fmt.Sprintf("%s/%d at %s", s.ID, s.Epoch, s.Addr) }

// Errors of routing.
var (
	// ErrUnavailable says that the table cannot be reached; a retry may succeed.
	ErrUnavailable = errors.New("routing: not available")
	// ErrLimit says that an argument exceeds a limit of this package.
	ErrLimit = errors.New("routing: beyond a limit")
)

// Table maps users to servers. Errors are ErrUnavailable, ErrLimit, or the context's,
// wrapped.
type Table interface {
	// Claim begins a lease, and replaces any earlier one under the server's id.
	Claim(ctx context.Context, s Server, ttl time.Duration) error
	// Renew extends a lease if it is still held with the same epoch.
	Renew(ctx context.Context, s Server, ttl time.Duration) (held bool, err error)
	// Release ends a lease, and with it all its rows, if it is still held.
	Release(ctx context.Context, s Server) error
	// Servers returns all whose lease is held, by id.
	Servers(ctx context.Context) ([]Server, error)
	// Put puts rows, or extends them, and returns how many were missing. Once it
	// returns nil, every later Lookup sees them.
	Put(ctx context.Context, s Server, users []string, ttl time.Duration) (missing int, err error)
	// Remove removes rows.
	Remove(ctx context.Context, s Server, users []string) error
	// Lookup returns the servers of users; users without any are not in the result.
	Lookup(ctx context.Context, users []string) (map[string][]Server, error)
}

// Lists is the shared cache of member lists.
type Lists interface {
	// List returns a chat's members and the membership version that the list is not
	// older than; 0 where there is none.
	List(ctx context.Context, chatID string) (version int64, users []string, err error)
	// SetList keeps a list, unless a newer one is there.
	SetList(ctx context.Context, chatID string, version int64, users []string) error
}

// Nudge is a hint for the relay of a shard of the outbox: something was committed there.
type Nudge struct {
	Shard   int
	Payload []byte
}

// Nudges delivers hints. They may be lost, repeated and reordered.
type Nudges interface {
	// Nudge sends hints to the present subscribers.
	Nudge(ctx context.Context, list []Nudge) error
	// Subscribe calls handle for each hint for some shards, 1 to MaxShards, until ctx
	// ends or the connection is lost for good. ready, if given, is called once the
	// subscription is active.
	Subscribe(ctx context.Context, shards []int, ready func(), handle func(Nudge)) error
}

// ListTTL is how long a member list is cached. Reading a list does not prolong it, so a
// wrong one is gone after this time.
const ListTTL = 300 * time.Second

func checkUsers(users []string) error {
	if len(users) > MaxLookup {
		return fmt.Errorf("%w: %d users", ErrLimit, len(users))
	}
	return nil
}

func checkList(users []string) error {
	if len(users) > MaxMembers {
		return fmt.Errorf("%w: list of %d users", ErrLimit, len(users))
	}
	return nil
}

func checkNudges(list []Nudge) error {
	for _, n := range list {
		if len(n.Payload) > MaxNudge || n.Shard < 0 {
			return fmt.Errorf("%w: nudge of %d bytes for shard %d", ErrLimit, len(n.Payload), n.Shard)
		}
	}
	return nil
}

func checkShards(list []int) error {
	if len(list) == 0 || len(list) > MaxShards || slices.Min(list) < 0 {
		return fmt.Errorf("%w: nudges of %d shards", ErrLimit, len(list))
	}
	return nil
}
