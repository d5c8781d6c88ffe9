package serving

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// The limit is reached for a principal at its share, and for all at their number; the refusal says which.
func TestPrincipalLimit(t *testing.T) {
	p := NewPrincipalLimit("seats", 6, 4)
	take := func(who string, want string) {
		t.Helper()
		err := p.Take(who)
		if want == "" && err != nil {
			t.Fatal(err)
		}
		if r, ok := refusal.Of(err); want != "" && (!ok || r.Reason != refusal.TooMany || !strings.Contains(r.Text, want) ||
			!strings.Contains(r.Text, "Detach")) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for range 4 {
		take("eve", "")
	}
	take("eve", "4 of the 6 seats")
	take("ann", "")
	take("bob", "")
	take("cid", "all 6 seats")
	p.Leave("eve")
	take("cid", "")
	take("eve", "all 6 seats")
	for _, who := range []string{"eve", "eve", "eve", "ann", "bob", "cid"} {
		p.Leave(who)
	}
	if p.Taken() != 0 || len(p.byPrincipal) != 0 {
		t.Errorf("%d are taken, %v", p.Taken(), p.byPrincipal)
	}
}

// No principal can take all there is, nor all that two others could.
func TestSharesLeaveRoom(t *testing.T) {
	for what, x := range map[string][2]int{"members": {MaxMembers, MemberShare}, "sessions": {MaxSessions, SessionShare}} {
		if x[1] < 1 || 3*x[1] >= x[0] {
			t.Errorf("%s: %d of %d", what, x[1], x[0])
		}
	}
}
