package upgrade

// RoomFor is roomFor.
func RoomFor(bytes int64) int64 { return roomFor(bytes) }

// SmallSteps makes steps of one batch each.
func (c *Config) SmallSteps() { c.small = true }
