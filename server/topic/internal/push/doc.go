// Package push sends the messages of a group to a webhook.
//
// A Worker is the only member of its group. It has a session like any other member, so leases, order,
// filters, retries and dead letters are those of the session; the worker decides when to ask for messages
// and what an answer of the webhook means. A Sender has what the workers of a process share: the way out,
// and how many requests it may have at a time, in all and to one host.
//
// The meaning of an answer:
//
//   - 2xx acknowledges the message.
//   - 400, 409, 413, 415 and 422 reject the message. It failed, and the webhook works.
//   - 410 pauses the subscription.
//   - 429 and 503, and every request that could not be written, say nothing about the message: it goes back
//     without an attempt.
//   - Everything else failed for a reason that may be the message or the webhook.
//
// A webhook that fails gets one message at a time, after growing pauses, until it takes one (health.go).
//
// Concurrency: a Sender is safe for concurrent use. A Worker runs once.
package push
