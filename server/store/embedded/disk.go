package embedded

import (
	"sync/atomic"
	"time"
)

// minFree is the part of the disk that must be free for writes, in percent.
const minFree = 5

// diskWatch asks the file system now and then how much is free.
type diskWatch struct {
	next atomic.Int64 // unix ms of the next question
	full atomic.Bool
}

const diskEvery = 2 * time.Second

// full reports whether less than minFree percent of the disk is free. File
// systems that do not know count as free.
func (s *Store) full() bool {
	now := time.Now().UnixMilli()
	if next := s.disk.next.Load(); now >= next && s.disk.next.CompareAndSwap(next, now+diskEvery.Milliseconds()) {
		u, err := s.opts.FS.GetDiskUsage(s.opts.Dir)
		full := err == nil && u.TotalBytes > 0 && u.AvailBytes*100 < u.TotalBytes*minFree
		if full != s.disk.full.Swap(full) {
			s.opts.Logger.Warn("free disk space changed", "writes_refused", full, "free_bytes", u.AvailBytes)
		}
	}
	return s.disk.full.Load()
}
