package itemcache

import (
	"strings"
	"sync/atomic"
)

// Names keeps one copy of each attribute name, so that a cached item does not
// hold on to its names. The map is replaced, never changed.
type Names struct {
	m atomic.Pointer[map[string]string]
}

const maxNames = 1024

// Intern returns the one copy of a name.
func (n *Names) Intern(s string) string {
	old := n.m.Load()
	if old != nil {
		if t, ok := (*old)[s]; ok {
			return t
		}
		if len(*old) >= maxNames {
			return strings.Clone(s)
		}
	}
	next := map[string]string{}
	if old != nil {
		for k, v := range *old {
			next[k] = v
		}
	}
	s = strings.Clone(s)
	next[s] = s
	n.m.CompareAndSwap(old, &next) // losing a race costs a copy
	return s
}
