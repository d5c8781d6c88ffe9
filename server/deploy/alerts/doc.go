// Package alerts holds the alert rules that operators load into Prometheus. It has
// no code; its tests hold the rules against the metrics that there are, and let
// each of them fire.
//
// promise.yaml has the promise to users: calls, streams, processes, disks, certificates, backups. The
// others have the causes: relay.yaml and lag.yaml the way of events, lifecycle.yaml chats and memberships,
// identity.yaml people and sessions, topics.yaml durable topics, installation.yaml engines and settings.
package alerts
