// Package explorer drives chats, hubs and reference clients through random
// schedules and demands that every device ends up showing what the store has.
//
// A schedule is one world: one to three processes on one store (each with chat
// service, reader and hub, a clock of its own and heads of its own), users with
// devices, and a network. Everything runs on one goroutine. Whatever reads or
// writes the store is a coroutine that stops after every call of the store, so
// that commits, openings of streams, reads and the hubs' work interleave at each
// of them. The network loses, delays, repeats, merges and reorders deliveries,
// loses requests and replies, and cuts streams; processes and devices crash;
// clocks differ and jump. Only two things are promised: a payload-free delivery
// of every commit comes to every hub in the end, and a receipt that is lost takes
// the stream with it.
//
// While it runs, a world checks every commit, every frame, every answer and every
// step of every device against the log of commits. In the end it stops making
// trouble, waits until nothing moves, and compares every device with the store.
//
// Commands of one chat in one process run one after another, because a second one
// would wait for the first inside a coroutine; so no plan holds the sends of
// several callers here. The tests of package chat have those.
//
// All choices of a schedule come from one seed and are recorded step by step. A
// schedule that fails is run again with steps left out and choices simplified for
// as long as it fails, and then printed with the seed that found it.
//
// The package has tests only: TestSchedules runs the schedules (PARLEY_EXPLORE is
// their number, PARLEY_EXPLORE_SEED the first seed), TestSeededBugs demands that
// worlds with a known mistake fail. It owns no rule of the system.
//
// # Concurrency
//
// A world belongs to one goroutine; worlds share nothing.
package explorer
