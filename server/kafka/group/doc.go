// Package group coordinates the consumer groups of the embedded Kafka port: their members, generations, assignments
// and committed offsets.
//
// It answers the requests of Kafka's classic group protocol (Versions lists them) as Apache Kafka's coordinator does,
// with static members and the handshake by which a member learns its id. Clients agree on eager or cooperative
// rebalancing in metadata that the coordinator passes on unread. The protocol of KIP-848
// (ConsumerGroupHeartbeat, ConsumerGroupDescribe), share groups and offsets inside of transactions are not offered.
// The port leaves them out of ApiVersions, and clients whose group.protocol is "consumer" get an error that says so.
//
// The rules are in machine, which has no goroutine, no I/O, no clock and no source of randomness: requests, the time,
// ids and the outcome of writes come in; answers, rows and the time of the next Wake come out. Coordinator runs one
// machine for many goroutines on a Store.
//
// # What is stored
//
// A row for each group that had members or offsets, and one for each committed offset. Members are not stored. After a
// restart every group is empty: its members, static ones too, are answered UNKNOWN_MEMBER_ID and join again.
//
// An answer that depends on a row is given once the row is durable. Offsets are visible from then on, and a request
// for offsets waits for the commits of its groups that were received before it. If a write fails, everything that
// waited for it is answered COORDINATOR_NOT_AVAILABLE, after which clients try again. Rows of a failed write may be in
// the store all the same: they are written or removed together with the group's next rows that depend on them.
//
// # Why an old member cannot commit
//
// A commit needs the id of a member of the group and the group's generation. Ids are random, are given out once and
// are not stored: no id from before a restart, a removal or a replacement is in the group. The generation is stored
// each time that it rises, before a member learns of it. It therefore never falls while the group exists, which
// assignors rely on that compare the generations of members' claims. A group that is deleted starts again at 1; ids
// still protect it. Commits without a member (generation -1) are accepted while the group is empty only.
//
// # Expiry
//
// The offsets of a group without members expire a retention after the later of their commit and the moment when the
// group became empty. The times are stored, and are those of a clock that does not go back: while the wall clock shows
// less than what was seen before, time continues at the pace of the monotonic clock. A clock that is set back
// therefore delays expiry and never hastens it. Sessions and rebalances are timed by the monotonic clock alone.
//
// # Limits
//
// Limits bound what clients can make the coordinator keep. Each request is refused with the code that its handlers in
// clients know as final: JoinGroup with GROUP_MAX_SIZE_REACHED (members, bytes, and the number of groups, for which
// Kafka has no code of its own), INVALID_GROUP_ID (the length of a group's name) or INVALID_REQUEST (the length of
// other names), SyncGroup with GROUP_MAX_SIZE_REACHED, and OffsetCommit, per partition, with OFFSET_METADATA_TOO_LARGE
// or INVALID_COMMIT_OFFSET_SIZE (partitions of a commit, offsets and their bytes, number of groups). The commit that a
// refused one would replace stays.
package group
