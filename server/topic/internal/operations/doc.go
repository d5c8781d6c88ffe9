// Package operations does for topics what no client asks for, and what operators ask for.
//
// Jobs run by themselves: they store heartbeats, detect groups that have fallen silent, store
// dead letters, move groups on that hold messages for too long, trim, delete subscriptions
// that ended long ago, and measure. An Admin answers operators: how groups are and what is
// wrong, removal and resurrection of groups, completion of what waits in vain, runs of jobs.
// A DeadLetterStore finds dead letters and brings their messages back.
//
// A message that failed too often for a group is copied into the topic NAME.dlq, with headers
// that say what happened. For a group that parks keys it stays where it is, and its key waits.
// Both are dead letters here.
//
// The package decides when something happens and what is removed. Package serving decides what
// a change means for messages and members. Callers have checked permissions.
//
// Concurrency: everything is safe for concurrent use; Jobs.Run is called once. Of each job
// that operators see there is one run at a time.
package operations
