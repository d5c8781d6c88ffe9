// Package schema indexes one side of a comparison: files, types, events, and what
// their options say.
//
// It owns what can be said about one schema alone. It judges nothing and knows no
// rule.
//
// Concurrency: an index is read-only once built.
package schema
