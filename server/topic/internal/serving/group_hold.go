package serving

import "sync"

// Hold stops handing out messages until what it returns is called: members keep what they
// have, and may answer for it.
func (g *Group) Hold() (resume func()) {
	g.held.Add(1)
	return sync.OnceFunc(func() {
		g.held.Add(-1)
		g.WakeAll()
	})
}
