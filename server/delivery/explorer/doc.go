// Package explorer drives chats, hubs, relays and reference clients through random
// schedules and demands that every device ends up showing what the store has.
//
// A schedule is one world: one to three processes on one store (each with chat service, reader and
// hub, a clock of its own and heads of its own), users with devices, and a network. Everything runs
// on one goroutine. Code that reads or writes the store is a coroutine that stops after every call of
// the store, so that commits, openings of streams, reads and the hubs' work interleave at each of
// them. The network loses, delays, repeats, merges and reorders deliveries, loses requests and
// replies, and cuts streams; processes and devices crash; a plan takes its time, and may arrive after
// its process has died; rows that were read are on stable storage only later; clocks are up to 20 s
// off either way, and are set forward and back; hours pass at once.
//
// In one half of the worlds only two things are promised: a payload-free delivery of
// every commit comes to every hub in the end, and a receipt that is lost marks the
// hub's streams, or takes them with it.
//
// The other half has the spine instead, which is to keep these promises: real relays bring the outbox
// to a log, two at a time now and then; workers read the log, partitions go from one to another,
// offsets are committed late; processes and workers notify each other over the real numbered links,
// by routes that expire. Transactions fail with or without their records, envelopes are lost, late
// and repeated, senders do not find for whom something is, links end and begin, relays, workers and
// processes die, the power is lost with what the log had not synced, and the store is restored from a
// backup in a new generation, while log, envelopes and devices still have the old one.
//
// Each world has some kinds of trouble and not others, because one kind hides what
// another one does: a crash has all streams synchronise that a lost delivery would
// have left behind.
//
// In large worlds (TestLargeSchedules) every group has a crowd of 250 besides, so that a
// creation is many plans, each of which concerns many.
//
// While it runs, a world checks every commit, every frame, every answer, every record
// of the log and every step of every device against the log of commits. In the end
// it stops making trouble, waits until nothing moves, and compares every device and
// the log with the store.
//
// Commands of one chat in one process run one after another, because a second one
// would wait for the first inside a coroutine; so no plan holds the sends of
// several callers here. The tests of package chat have those.
//
// All choices of a schedule come from one seed. A schedule that fails is run again
// with its choices recorded step by step, then with steps left out and choices
// simplified for as long as it fails, and then printed with the seed that found it.
//
// The package has tests only: TestSchedules runs the schedules (PARLEY_EXPLORE is
// their number or the time for them, PARLEY_EXPLORE_SEED the first seed), TestSeededBugs demands that
// worlds with a known mistake fail. It owns no rule of the system.
//
// # Concurrency
//
// A world belongs to one goroutine; worlds share nothing.
package explorer
