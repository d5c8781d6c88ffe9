// Package modeltest is a model client of durable topics, for tests.
//
// A World drives a server over its public API: publishers that number their requests, members that
// poll, stream, and say everything on one stream, groups that pause, seek, die, start late, get other settings, ask
// for a backfill and are cancelled, operators that redrive and discard dead letters, and a principal that has no
// right to any of it. It knows the contract (docs/topics.md)
// and nothing of the server. It records each call with the moments at which it started and returned.
// Settle ends the run, and holds that history against each promise of the contract.
//
// A call whose answer was lost has an unknown outcome, and the contract gives the server freedom:
//
//   - A publish is repeated with its number until it is answered, so its outcome is known in the
//     end. It is stored between the first call and the last answer.
//   - An acknowledgement without an answer counts or does not. The message may come again, and need
//     not.
//   - A poll without an answer may have taken messages. They come again after the lease, and may
//     count an attempt.
//   - A kill ends all sessions and leases. With OFFSET_WATERMARK it also takes acknowledgements that
//     are not stored yet, which takes a second.
//   - A change of a group is repeated until it is answered. Deliveries between its first call and
//     its answer belong to either side.
//   - Other settings of a group end its leases, and count no attempt. A change of max_in_flight alone does not: members
//     keep what they have. A filter applies to what was not delivered before; messages that a filter left out stay left
//     out. So a group has to get what all of its filters let through.
//   - A message whose time to live is over comes no more, and counts as acknowledged. A member that has it may still
//     acknowledge it; whether that counts, or the message counts as expired, is the server's choice from the earliest
//     moment at which it may have ended. A message that the group never acknowledged counts.
//   - What is parked waits for UnparkKeys, and holds what has its key. Its attempts count from the
//     beginning then.
//   - A purge is repeated until it is answered, so it may remove from its first call on. The answer says where it
//     ended; messages published meanwhile are on either side. What is before that position comes no more, is not waited
//     for, and counts in the ledger if the group had not acknowledged it.
//   - A change of the completion mode takes no acknowledgement. While one to OFFSET_WATERMARK is under way,
//     and until one back is answered, a kill may.
//   - The id of a message holds over a kill as long as its message is in the log. Topics whose messages are
//     removed within minutes get no ids.
//   - With the selection HASH a key has one member while no session begins or ends. A session whose end was not
//     answered may be there until the next kill.
//   - What was said on a stream that breaks before the answer was done, or not. It is not repeated.
//   - A redriven dead letter stands behind the messages published since, for its group alone, and its attempts start
//     from the beginning. If the call has no answer, each dead letter was put back once, or not at all. It may stay
//     claimed, and later ones of its key wait then. A dead letter that was discarded before a call is not put back.
//   - A backfill of what is not complete has what a group had not acknowledged when it began, which is between
//     the first call and the answer. It keeps that while it waits for members. Of what was acknowledged
//     before, it has nothing, unless a kill took the acknowledgement.
//   - Where messages are removed once they are complete, those from before a group may go while a member has them.
//     What it says of such a message means nothing, and is answered as done.
//   - A backfill has all that was published before the group and that it asks for. A message that is published while
//     the group subscribes may be part of it. One that is cancelled and started again continues.
//
// Concurrency: a World starts goroutines in Start and ends them in Settle. Its methods are for one
// goroutine.
package modeltest
