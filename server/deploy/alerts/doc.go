// Package alerts holds the alert rules that operators load into Prometheus. It has
// no code; its tests hold the rules against the metrics that there are, and let
// each of them fire.
package alerts
