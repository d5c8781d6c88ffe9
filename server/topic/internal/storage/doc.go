// Package storage is what is stored of durable topics, and the rules of what may be.
//
// A Catalog holds the rows of a slot's topics and subscriptions and a copy of them in memory.
// Every change is conditional in the store on what the copy shows, and is durable before the
// copy shows it. In an installation of several processes a fence (fence.go) refuses the plans
// of earlier owners: a process may hang, lose its lease and wake up without knowing, so every
// plan is stored only while the row of the slot has the owner's epoch.
//
// The rules know no rows: settings and presets of topics and subscriptions (settings_*.go),
// the states of a subscription and what leads from one to another (lifecycle.go), and when a
// silent group counts as dead (detect.go). The package does not know what a state means for
// messages, nor permissions.
//
// Concurrency: a Catalog is safe for concurrent use. The caller puts changes of one topic in
// order: it holds the topic's lock. A Detector is used by one goroutine.
package storage
