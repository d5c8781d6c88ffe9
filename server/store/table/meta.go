package table

import "github.com/parley-chat/parley/server/store"

// ClockKey is the key of the last stamp that a process took, in table meta.
func ClockKey() store.Key { return store.Key{Table: store.Meta, PK: "clock"} }

// AttrStamp holds that stamp, in unix ms.
const AttrStamp = "stamp"
