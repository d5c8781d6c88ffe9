package people

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// A change of a profile stands in a few partitions, by time, for a while. Each process reads
// them periodically and notifies its own streams. So a change costs one row, for any
// number of chats, and no process misses one because a message between processes was lost.
//
// A user who changes a profile again and again causes no more work than one change each
// announceEvery: the rows of a slot are one, and a newer version waits until that long after the
// announcement of the one before. A later read finds it again.
const (
	pollEvery     = time.Second
	announceEvery = rows.ChangeSlot
	// tail is how far back a process reads each time, so that it finds what had to wait.
	tail = 2 * announceEvery
	// overlap is how far back it reads now and then: clocks differ, and a change is found
	// only once it is committed.
	overlap = 40 * time.Second
	// overlapEvery is the number of polls of which one goes back so far.
	overlapEvery = 10
	// changesKept is how long a change can be found.
	changesKept = time.Hour
	// maxAnnounced bounds the announcements that a process remembers; it may repeat one that it forgot.
	maxAnnounced = 1 << 16
)

// announcement is the last version of a profile that streams were notified of, and when they were, or
// when that failed, in unix ms.
type announcement struct{ version, at int64 }

func changeOf(p Profile) rows.Change {
	return rows.Change{UserID: p.UserID, Version: p.Version, At: p.UpdatedAt,
		ExpiresAt: seconds(p.UpdatedAt, changesKept)}
}

// announce notifies the streams of this process of a change, once. A later poll finds changes that
// fail or come too soon.
func (s *Service) announce(ctx context.Context, c rows.Change) {
	before, ok := s.shouldAnnounce(c)
	if !ok {
		return
	}
	chats, err := s.chatsOf(ctx, c.UserID)
	if err != nil {
		s.cfg.Failed("announce a profile", err)
		s.mu.Lock()
		s.announced[c.UserID] = announcement{before, s.now()}
		s.mu.Unlock()
		return
	}
	s.cfg.Hub.ProfileChanged(c.UserID, c.Version, chats)
}

// shouldAnnounce reports whether streams are to be notified of a version now, and records it.
// before is the version that they were notified of before.
func (s *Service) shouldAnnounce(c rows.Change) (before int64, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.announced[c.UserID]
	if c.Version <= last.version || now >= last.at && now < last.at+announceEvery.Milliseconds() {
		return 0, false
	}
	bounded.Put(s.announced, c.UserID, announcement{c.Version, now}, maxAnnounced)
	return last.version, true
}

// chatsOf returns the chats of which a user is a member.
func (s *Service) chatsOf(ctx context.Context, user string) (ids []string, err error) {
	for row, err := range s.commits.Partition(ctx, store.DeliveryState, user) {
		if err != nil {
			return nil, err
		}
		if !table.UserChatFrom(user, row.Key.SK, row.Item).Left() {
			ids = append(ids, row.Key.SK)
		}
	}
	return ids, nil
}

// PollChanges notifies the streams of this process of changes that any process has committed since
// a time, in unix ms.
func (s *Service) PollChanges(ctx context.Context, since int64) error {
	for shard := range rows.ChangeShards {
		for row, err := range s.query(ctx, rows.Changes(shard, since)) {
			if err != nil {
				return err
			}
			s.announce(ctx, rows.ChangeFrom(row))
		}
	}
	return nil
}

// Run notifies streams of changes and carries deletions out, until ctx ends.
func (s *Service) Run(ctx context.Context, ready func()) error {
	ready()
	var running sync.WaitGroup
	running.Go(func() { s.processDeletions(ctx) })
	running.Go(func() { s.follow(ctx) })
	running.Wait()
	return nil
}

// follow notifies streams of changes until ctx ends.
func (s *Service) follow(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		back := tail
		if n%overlapEvery == 0 {
			back = overlap
		}
		if err := s.PollChanges(ctx, s.now()-back.Milliseconds()); err != nil && ctx.Err() == nil {
			s.cfg.Failed("poll the changes of profiles", err)
		}
	}
}
