package backend

import "time"

// WatchEvery sets how often Watch looks.
func (e *Backend) WatchEvery(d time.Duration) { e.watchEvery = d }
