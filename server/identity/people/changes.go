package people

import (
	"context"
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
// tellEvery: the rows of a slot are one, and a newer version waits until that long after the
// announcement of the one before. A later read finds it again.
const (
	lookEvery = time.Second
	tellEvery = rows.ChangeSlot
	// tail is how far back a process looks each time, so that it finds what had to wait.
	tail = 2 * tellEvery
	// overlap is how far back it looks now and then: clocks differ, and a change is found
	// only once it is committed.
	overlap = 40 * time.Second
	// overlapEvery is the number of looks of which one goes back so far.
	overlapEvery = 10
	// changesKept is how long a change can be found.
	changesKept = time.Hour
	// maxTold bounds what a process remembers; whom it forgets it may tell twice.
	maxTold = 1 << 16
)

// told is the last version of a profile that streams were notified of, and when they were, or
// when that failed, in unix ms.
type told struct{ version, at int64 }

func changeOf(p Profile) rows.Change {
	return rows.Change{UserID: p.UserID, Version: p.Version, At: p.UpdatedAt,
		ExpiresAt: seconds(p.UpdatedAt, changesKept)}
}

// tell tells the streams of this process of a change, once. Changes that fail, or come too
// soon, are found again.
func (s *Service) tell(ctx context.Context, c rows.Change) {
	before, ok := s.untold(c)
	if !ok {
		return
	}
	chats, err := s.chatsOf(ctx, c.UserID)
	if err != nil {
		s.cfg.Failed("announce a profile", err)
		s.mu.Lock()
		s.told[c.UserID] = told{before, s.now()}
		s.mu.Unlock()
		return
	}
	s.cfg.Hub.ProfileChanged(c.UserID, c.Version, chats)
}

// untold reports whether streams are to be notified of a version now, and records it.
// before is the version that they were notified of before.
func (s *Service) untold(c rows.Change) (before int64, ok bool) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.told[c.UserID]
	if c.Version <= last.version || now >= last.at && now < last.at+tellEvery.Milliseconds() {
		return 0, false
	}
	bounded.Put(s.told, c.UserID, told{c.Version, now}, maxTold)
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

// Look tells the streams of this process of changes that were committed since a time, in
// unix ms, by any process.
func (s *Service) Look(ctx context.Context, since int64) error {
	for shard := range rows.ChangeShards {
		for row, err := range s.query(ctx, rows.Changes(shard, since)) {
			if err != nil {
				return err
			}
			s.tell(ctx, rows.ChangeFrom(row))
		}
	}
	return nil
}

// Follow tells streams of changes until ctx ends.
func (s *Service) Follow(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		back := tail
		if n%overlapEvery == 0 {
			back = overlap
		}
		if err := s.Look(ctx, s.now()-back.Milliseconds()); err != nil && ctx.Err() == nil {
			s.cfg.Failed("look for changes of profiles", err)
		}
	}
}
