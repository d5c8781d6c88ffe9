// Package explorer runs the procedures of chats and memberships under schedules
// that a seed decides: processes that take one store call at a time in any order,
// die between any two, lose replies, and whose plans arrive late; clients that
// repeat what was not answered. In some schedules clocks differ by as much as the
// design allows and jump, minutes pass in the middle of calls, and the store puts
// plans off for longer than a plan may live. Others see a commit before it is on disk,
// and a read that need not be consistent shows how it was at the beginning.
//
// The store is the map engine. It checks every plan at once against the invariants of every committed
// state: permissions, the exact count, the size, one owner, direct chats that never change, no removed
// member coming back, one chat per pair, one effect per request, heads and events without a gap, one
// cause for the events of a command, times that are as old as a plan may be at most, users' own rows
// with their own wishes only, answers that a loss of power leaves true. When a schedule ends, each
// intended member of a new group is a member, or was removed.
//
// In large schedules (TestLargeSchedules) groups have up to 300 members, so that creations
// take many plans, between which everything may happen.
//
// Read positions have schedules of their own (TestReadSchedules): calls of one member wait for each
// other in a process and are merged, so many are under way there at a time, each a goroutine of a
// bubble of which one at a time continues. Besides the above, callers leave, and the power is lost:
// positions that were answered, or shown to the member's devices, are still there.
//
// The package has tests only. TestSchedules runs the schedules (PARLEY_EXPLORE is their number or the
// time for them, PARLEY_EXPLORE_SEED the first seed); a failure names its seed and shows its steps.
// TestSeededBugs demands that the procedures as the source text has them, and ours without one of
// their conditions, are found out: a test that finds no bug proves nothing.
//
// Concurrency: a world belongs to one goroutine; its processes are coroutines of
// it. The goroutines of a world of read positions share it under its lock.
package explorer
