// Package topicrpc serves durable topics over RPC: the services of topics, subscriptions,
// consumers and backfills (Server), of their operators (AdminServer), and of dead letters for
// other processes (DeadLetterServer). With many servers a Router passes each call to the owner
// of its slot. A Module puts all of it together for the mode in which the server runs.
//
// The package decides how requests and answers travel, their limits and the codes of refusals.
// Package topic decides what a call does.
//
// Concurrency: everything is safe for concurrent use.
package topicrpc
