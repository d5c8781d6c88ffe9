// Package topictest helps the tests of packages that store durable topics or run them: it has
// a stored cursor, and processes (Cluster) that share a store and a log of topics and can hang,
// be cut off and stop.
//
// The log of a Cluster refuses an earlier owner of a slot as brokers refuse an earlier producer
// of the same transactional id. Concurrency: everything is safe for concurrent use.
package topictest
