package probe

import "time"

// ProcessorTime is not asked for on this system.
func ProcessorTime() time.Duration { return 0 }
