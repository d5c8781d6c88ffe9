package telemetry

// Names of the metrics that show servers which cannot be reached.
const (
	LinkSilent  = "parley_link_peers_silent"
	LinkUnheard = "parley_link_processes_unheard"
)
