package upgrade

// SmallSteps makes steps of one batch each.
func (c *Config) SmallSteps() { c.small = true }
