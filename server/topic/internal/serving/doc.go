// Package serving runs open topics: it opens each on first use with its partitions and groups,
// puts messages into its log, delivers them to the members of its groups, changes its
// subscriptions, and closes it when it has not been used for long.
//
// A Partition is a machine.Machine with the batches of its log that are in memory. A Flusher
// stores what acknowledgements change, all changed cursors in one plan. A Group has the
// sessions of its members and the timers of their leases. An OpenTopic has its partitions and
// groups, and a TopicCache has the open topics. A Publisher appends; a SubscriptionManager
// changes subscriptions, first in the store, then for the messages, then for the members;
// Backfills give a group earlier messages at a pace that publishers do not feel. Sources say
// where the messages of a topic come from: from its log, or from the events of all chats.
//
// The cursors say which messages of a backfill are left, and are durable before the row says
// that it runs. The row says that it is cancelled before the cursors give them up. The partial
// results of a crash are completed when the topic is opened.
//
// The package does not know permissions, nor what runs on a schedule.
//
// Concurrency: everything is safe for concurrent use. Locks are taken in this order: a topic's
// (for reading while messages get their positions or a member attaches, for writing while a
// subscription or the settings change), that of Memory, a partition's, then a session's or the
// flusher's. No lock of a group is held while a partition's is taken. A topic stays open while
// it is held. A topic from All or Opened is not held: it may be closed meanwhile, and must not
// be changed.
package serving
