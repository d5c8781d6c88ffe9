package explorer

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/delivery"
)

// In large worlds a crowd is in every group, besides the few who do most of what happens:
// creations take several plans, each of which concerns many, and member lists are longer
// than a page. Two of the crowd have devices.

const crowdSize = 250

// enlarge makes a world large if it is to be. chunk is for others.
func (w *world) enlarge(chunk int) {
	if w.chunk = chunk; !w.bug.large {
		return
	}
	for i := range crowdSize {
		w.crowd = append(w.crowd, fmt.Sprintf("crowd%03d", i))
	}
	w.chunk = []int{25, 25, 9}[w.choose.pick(3)]
}

func (w *world) withCrowd(users []string) []string { return slices.Concat(users, w.crowd) }

// firstMembers are those whom the first user makes a group with.
func (w *world) firstMembers() []string {
	return w.withCrowd(w.users[1 : 2+w.choose.pick(len(w.users)-1)])
}

func (w *world) crowdPhones() {
	if len(w.crowd) > 0 {
		w.newPhone(w.crowd[0], 1)
		w.newPhone(w.crowd[crowdSize-1], 1)
	}
}

// What holds for few holds for many.
func TestLargeSchedules(t *testing.T) {
	schedules(t, 40, 20, 100, &bug{large: true})
}

// Mistakes that only large groups show.
func init() {
	bugs = append(bugs,
		bug{name: "a member list of a hundred", large: true, deliver: untargeted, source: firstHundred},
		bug{name: "ten of a plan's members are told of", large: true, deliver: func(_ *world, d *delivery.Delivery) {
			d.Targets, d.MembershipVersion = d.Targets[:min(len(d.Targets), 10)], 0
		}})
}

// firstHundred reads member lists up to a hundred.
func firstHundred(w *world, s delivery.Source) delivery.Source {
	return &firstHundredSource{sourceOf{Source: s, w: w}}
}

type firstHundredSource struct{ sourceOf }

func (s *firstHundredSource) MemberIDs(ctx context.Context, chatID string) (int64, []string, error) {
	v, users, err := s.Source.MemberIDs(ctx, chatID)
	return v, users[:min(len(users), 100)], err
}
