// Package schema checks the payloads of topics against schemas of the registry, and decides which
// schema may follow which.
//
// A Schemas has the compiled schemas of the topics of a service, within bounds; a schema does not
// change, so an entry is never wrong. A payload in Protobuf's encoding is checked as it is read,
// without memory of its own; it is parsed only if its schema has rules or required fields. The amount
// of payload that is parsed at the same time is bounded, because a payload can take sixty times its
// size in memory.
//
// The package does not know topics, the uses of a schema, or what is stored.
//
// Concurrency: a Schemas is safe for concurrent use. No lock is held while the registry is read or a
// schema is compiled or judged.
package schema
