package engine

import "time"

// WatchEvery sets how often Watch looks.
func (e *Engine) WatchEvery(d time.Duration) { e.watchEvery = d }
