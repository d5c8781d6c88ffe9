// Package machine is the state machine of one partition of a topic and of all groups that
// read it: which group is to receive which position, what it has acknowledged, which member
// has which message for how long, and what is tried again when. It has no goroutine, no clock
// and no input or output. Its caller calls one method at a time and passes the time.
//
// A Machine has a GroupState for each group. Requirements are runs of positions (Set), not
// rows per message: a message that is published belongs to every group with an open last run,
// and a change of state adds or removes runs. Each position that a group is to receive is in
// one place: ready, leased, delayed, waiting for its key, or being stored as a dead letter.
//
// Each part of a group has a file:
//
//   - what a member gets next: deliver.go, keys in order: keylock.go, filters: filter.go
//   - acknowledgements, returns and the end of leases: settle.go; the times at which leases end and
//     messages are tried again: wake.go (Wake, endOverdueLeases); the table of leases: lease.go
//   - failures, their pauses and dead letters: failure.go; messages that may end consumers: suspects.go
//   - delayed messages: postpone.go, delays.go; times to live: ttl.go
//   - backfills: backfill.go, catchup.go; credits of a session: budget.go; the bound of all members: quota.go
//   - why a member is refused: outcome.go; what was released and lost: ledger.go
//   - the stored form: cursor.go, save.go
//
// Concurrency: a Machine and its groups belong to their caller. A Budget and a Quota
// are safe for concurrent use. The lock of a Quota is taken while a Budget's is held; none is held during a call
// to anything else.
package machine
