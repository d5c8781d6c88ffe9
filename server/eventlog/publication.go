package eventlog

import (
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Publication is what is published of one row of the outbox, or of nothing that has a row.
type Publication struct {
	Row     store.Key       // deleted in the commit that appends the records; the zero Key: none
	Chat    string          // records are consecutive events of this chat; "": of none
	Last    int64           // version of the last of these events
	Records []*kafka.Record // with Topic and Partition; Publish sets Offset and Timestamp
}
