package app

import (
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/telemetry"
)

// meter connects what commands tell to the metrics of chats and memberships
// (L-164…L-169).
func meter(l *telemetry.Lifecycle) chat.Meter {
	kinds := map[table.Type]string{table.Direct: "direct", table.Group: "group"}
	return chat.Meter{
		ChatCreated: func(k table.Type) { l.ChatCreated(kinds[k]) },
		CreationTook: func(k table.Type, phase int, took time.Duration) {
			l.CreationTook(kinds[k], strconv.Itoa(phase), took)
		},
		CreationRetried:   l.CreationRetried,
		DirectAsked:       l.DirectAsked,
		MembershipChanged: func(op chat.Operation, took time.Duration) { l.MembershipChanged(op.ChangeType(), took) },
	}
}
