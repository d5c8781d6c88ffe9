package serving

// Settled reports whether everything is stored, dead letters too. A change that is not yet
// stored is stored within Interval.
func (p *Partition) Settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stored := p.machine.Version() == p.machined
	for _, g := range p.machine.Groups() {
		s := p.saved[g.Config().Name]
		stored = stored && s != nil && s.version == g.Version() && g.Stats().Undeliverable == 0
	}
	if !stored {
		p.listLocked()
	}
	return stored && !p.dirty
}

// Unsaved reports whether something of a group is not stored yet; of any group if its name is empty.
func (p *Partition) Unsaved(group string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.machine.Groups() {
		s := p.saved[g.Config().Name]
		if (group == "" || group == g.Config().Name) && s != nil && s.version != g.Version() {
			return true
		}
	}
	return false
}
