// Package schema checks the payloads of topics against schemas of the registry, and decides which
// schema may follow which.
//
// A Schemas has the compiled schemas of the topics of a service, within bounds; what a schema is does
// not change, so an entry is never wrong. A payload in Protobuf's encoding is checked as it is read,
// without memory of its own; it is parsed only if its schema has rules or required fields. What is
// parsed at the same time is bounded, because a payload can take sixty times its size.
//
// The package does not know topics, nor who uses a schema, nor what is stored.
//
// Concurrency: a Schemas is safe for concurrent use. No lock is held while the registry is read or a
// schema is compiled or judged.
package schema
