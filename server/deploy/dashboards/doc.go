// Package dashboards holds what operators import into Grafana. It has no code; its test
// holds the panels against the metrics that there are.
package dashboards
