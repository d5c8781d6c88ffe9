// Package routing knows which process holds the streams of which users.
//
// It owns the rows of that table, the lease that keeps a process's rows alive, the
// shared cache of member lists, and the channel on which processes nudge relays. It
// owns nothing that must last: all of it may vanish at any time, and comes back by
// itself (see [Lease]). It does not own streams (package delivery) or what is sent
// over links (package link).
//
// # Rows and leases
//
// A process that holds streams claims a lease for its [Server], and puts a row for
// each user. A row names the server and the epoch of its lease, and counts only while
// that very lease is held: one key says that all rows of a process are void. A lease
// is renewed only if it is still held, never by a blind set; a process that finds it
// gone claims a new epoch, puts all its rows again, and only then lets its streams
// look for what they missed (design §5 rule 6, §8).
//
// A row is put, and acknowledged, before its stream reads anything. So whoever
// commits a change and looks up the users afterwards finds the row, or the stream's
// reads find the change.
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

// Limits of what is kept, so that nobody else's mistake becomes ours.
const (
	MaxServers = 1 << 10 // of the table, and of one user
	MaxLookup  = 1 << 12 // users of one lookup
	MaxMembers = 1 << 10 // of a cached list
	MaxNudge   = 1 << 20 // bytes
	MaxShards  = 1 << 10 // that one listens to at a time
)

// Server is a process that holds streams.
type Server struct {
	ID         string // of the process: no other one had it before
	Addr       string // where other processes reach it, host:port
	Generation string // of its store
	Epoch      uint64 // of its lease: grows whenever the lease was lost
}

// String names the server and its epoch.
func (s Server) String() string { return fmt.Sprintf("%s/%d at %s", s.ID, s.Epoch, s.Addr) }

// Errors of routing.
var (
	// ErrUnavailable says that the table cannot be reached; nothing is known.
	ErrUnavailable = errors.New("routing: not available")
	// ErrLimit says that something is more than this package takes.
	ErrLimit = errors.New("routing: beyond a limit")
)

// Table is who is where. Errors are ErrUnavailable, ErrLimit, or the context's,
// wrapped.
type Table interface {
	// Claim begins a lease, whatever was there under the server's id.
	Claim(ctx context.Context, s Server, ttl time.Duration) error
	// Renew prolongs a lease if it is still held with the same epoch.
	Renew(ctx context.Context, s Server, ttl time.Duration) (held bool, err error)
	// Release ends a lease, and with it all its rows, if it is still held.
	Release(ctx context.Context, s Server) error
	// Servers returns all whose lease is held, by id.
	Servers(ctx context.Context) ([]Server, error)
	// Put puts rows, or prolongs them, and returns how many were not there. Once it
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

// Nudge is a hint for whoever works on a shard of the outbox.
type Nudge struct {
	Shard   int
	Payload []byte
}

// Nudges carries hints. They may be lost, repeated and reordered.
type Nudges interface {
	// Nudge sends hints to those who listen just now.
	Nudge(ctx context.Context, list []Nudge) error
	// Nudged calls got for each hint of some shards, 1 to MaxShards, until ctx ends or
	// the connection is lost for good. ready, if given, is called once hints will be
	// received.
	Nudged(ctx context.Context, shards []int, ready func(), got func(Nudge)) error
}

// Engine is one implementation of all of it.
type Engine interface {
	Table
	Close() error
}

// listTTL is how long a member list is kept, whoever asks for it (L-128).
const listTTL = 300 * time.Second

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
