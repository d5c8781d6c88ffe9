package explorer

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// Mistakes with names, roles and own settings, with clocks and old plans, with what is
// read too early or without consistency.
func init() {
	bugs = append(bugs,
		bug{name: "copies of the own state without revisions", frame: unrevised,
			answer: func(_ *world, _ string, res proto.Message) {
				for _, s := range statesOf(res) {
					s.Revision = 0
				}
			}},
		bug{name: "receipts are lost and nobody notices", frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
			if f.GetMemberState() != nil {
				return nil
			}
			return one(f)
		}},
		bug{name: "a rename that keeps the old name", frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
			if c := f.GetChat(); c != nil {
				f = proto.CloneOf(f)
				f.GetChat().Name = "g"
			}
			return one(f)
		}},
		bug{name: "a change of role without the role", frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
			if f.GetMembershipChange().GetRole() == chatv1.MemberRole_MEMBER_ROLE_ADMIN {
				f = proto.CloneOf(f)
				f.GetMembershipChange().Role = chatv1.MemberRole_MEMBER_ROLE_MEMBER
			}
			return one(f)
		}},
		bug{name: "frames before what was read is on stable storage", from: 288, noWait: true},
		bug{name: "gaps are read without consistency", from: 1063,
			weak: func(t store.Table) bool { return t == store.Events }},
		bug{name: "heads are read without consistency", weak: func(t store.Table) bool { return t == store.ChatCounters }},
		bug{name: "users' rows are read without consistency",
			weak: func(t store.Table) bool { return t == store.DeliveryState }},
		bug{name: "token without overlap", from: 1260, skewed: true,
			source: func(w *world, s delivery.Source) delivery.Source {
				return &lateTokens{sourceOf{Source: s, w: w}}
			}},
		bug{name: "memberships of phase 2 begin with the present sequence", from: 600, plan: lateArrivals},
	)
}

// unrevised takes the revision off whatever a stream shows.
func unrevised(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
	f = proto.CloneOf(f)
	if s := f.GetMemberState(); s != nil {
		s.Revision = 0
	}
	if s := f.GetHead().GetOverview().GetState(); s != nil {
		s.Revision = 0
	}
	return one(f)
}

// statesOf are the user's own states in an answer.
func statesOf(res proto.Message) (states []*chatv1.MemberState) {
	switch r := res.(type) {
	case *deliveryv1.SyncResponse:
		for _, ov := range r.GetOverviews() {
			states = append(states, ov.GetState())
		}
	case *deliveryv1.AckResponse:
		for _, o := range r.GetReadOutcomes() {
			states = append(states, o.GetState())
		}
	case *chatv1.GetChatResponse:
		states = append(states, r.GetOverview().GetState())
	case interface{ GetState() *chatv1.MemberState }:
		states = append(states, r.GetState())
	}
	return slices.DeleteFunc(states, func(s *chatv1.MemberState) bool { return s == nil })
}

// lateTokens have the time of the reads, not an earlier one.
type lateTokens struct{ sourceOf }

func (s *lateTokens) NewToken(user string, from view.Start) string {
	from.At = from.At.Add(90 * time.Second)
	return s.Source.NewToken(user, from)
}

// lateArrivals has those who were on the way into a group begin when they arrive.
func lateArrivals(w *world, p *store.Plan) {
	if !slices.ContainsFunc(p.Writes, func(wr store.Write) bool { return wr.Key.Table == store.PendingMembers }) {
		return
	}
	p.Writes = slices.Clone(p.Writes)
	for i := range p.Writes {
		wr := &p.Writes[i]
		if wr.Key.Table != store.DeliveryState || wr.Op != store.OpPut {
			continue
		}
		row := table.UserChatFrom(wr.Key.PK, wr.Key.SK, wr.Item)
		row.JoinedSequence = int64(len(w.chat(wr.Key.SK).bySequence))
		wr.Item = row.Item()
	}
}
