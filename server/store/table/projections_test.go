package table

import (
	"strings"

	"github.com/parley-chat/parley/server/store"
)

func readProjections(r store.Row) any {
	switch {
	case r.Key.Table == store.Notifications:
		return NotificationFrom(r.Item)
	case r.Key.Table == store.Meta && strings.HasSuffix(r.Key.PK, "/rebuild"):
		return RebuildFrom(r.Item)
	case r.Key.Table == store.Meta:
		return ProjectionFrom(r.Item)
	case r.Key.SK == "#":
		return FoldedFrom(r.Item)
	}
	return ChatActivityFrom(r.Item)
}

func readMeta(r store.Row) any {
	switch {
	case strings.HasPrefix(r.Key.PK, "projection/"):
		return readProjections(r)
	case r.Key.PK != ClockKey().PK:
		return ProgressFrom(r.Item)
	}
	return nil
}

func projectionSamples() []store.Row {
	const at = 1_700_000_000_123
	row := func(k store.Key, it store.Item) store.Row { return store.Row{Key: k, Item: it} }
	return []store.Row{
		row(ProjectionKey("p"), Projection{Revision: 9, Live: 2, LiveVersion: 1, Next: 3, NextVersion: 2, Paused: true,
			AcceptGaps: true, Last: 3, Dropped: []string{"1"}, Generation: "g1", By: "ops", ChangedAt: at}.Item()),
		row(RebuildKey("p"), Rebuild{Revision: 9, Build: 3, Holder: "wrk_01", Planned: true, After: "chat_01", Total: 700,
			Done: 500, Stuck: 1, Gaps: "chat_01 chat_02", Blocked: true, BeganAt: at, EndedAt: at + 1}.Item()),
		row(FoldedKey(store.Projections, ProjectionPartition("p", 2, "chat_01")), Folded{Version: 7}.Item()),
		row(store.Key{Table: store.Projections, PK: ProjectionPartition("p", 2, "chat_01"), SK: "day/2023-11-14"},
			ChatActivity{Messages: 7, Senders: 2}.Item()),
		row(store.Key{Table: store.Notifications, PK: ProjectionPartition("n", 2, "chat/chat_01"),
			SK: Number(at) + "#g/t/3/12"},
			Notification{Group: "g", Topic: "t", Partition: 3, Offset: 12, Class: 2, Reason: "permanent: bad",
				Consumer: "wrk_01", Attempts: 3, FailedAt: at, ChatID: "chat_01", Version: 7, EventID: "evt_01",
				EventType: "MessagePersisted", Actor: "user_01", EventTime: at - 1, ExpiresAt: at / 1000}.Item()),
	}
}
