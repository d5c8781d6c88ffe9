package explorer

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client/conformance"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/delivery/linkseq"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// bug is a mistake that a world makes on purpose; without any hook it makes none.
type bug struct {
	name string
	// seed to begin the search with: shortly before one that shows it, for those that are rare
	from       uint64
	source     func(*world, delivery.Source) delivery.Source      // what hubs read
	read       func(*world, store.Key, store.Item) store.Item     // what a process reads
	plan       func(*world, *store.Plan)                          // what a process writes
	deliver    func(*world, *delivery.Delivery)                   // what hubs get
	frame      func(*conn, *deliveryv1.Frame) []*deliveryv1.Frame // what devices get
	answer     func(w *world, user string, res proto.Message)     // what devices are answered
	storage    func(device.Storage) device.Storage                // what devices store
	ask        func(*delivery.Delivery)                           // what hubs are asked to have applied
	notAMember bool                                               // NOT_A_MEMBER always counts
	deaf       bool                                               // a stream is not woken now and then
	noRepair   bool                                               // what is lost stays lost
	weak       func(store.Table) bool                             // tables that are read without consistency
	skewed     bool                                               // clocks are far apart and plans slow, so that it shows
	// hubs do not wait until what they read is on stable storage
	noWait     bool
	unrecorded bool // a mark is answered and not recorded, now and then
	refused    bool // an Ack that fails counts as a refusal of its marks

	// where devices are recorded, under the name of a seed: no mistake in itself
	tapes *[]*conformance.Scenario
	seed  uint64
	large bool // groups are: no mistake in itself
	// the first chats are of two, who read much: no mistake in itself
	direct bool
	// some devices are behind proxies that hold streams back, and much time passes: no mistake in itself
	buffered bool
	spine    bool // the mistake is one of the durable path or of links
	// makes the trouble frequent that shows it, and leaves out what hides it
	tune        func(*spine)
	envelope    func(*world, *process, *linkseq.Envelope) // what receivers get
	repair      func(*delivery.Delivery)                  // what fanout tells
	lateProduce bool                                      // rows are deleted before their records are there
	keepRow     bool                                      // the log in the store does not delete rows
	unstable    bool                                      // rows are deleted before their records are on stable storage
	missedRow   bool                                      // the outbox shows a later row and not the first
	noSweep     bool                                      // whole shards are read as empty
	commitFirst bool                                      // offsets are committed before hubs are notified
	newest      bool                                      // a partition resumes at its end, not where it was committed
	noDirty     bool                                      // a gap marks no stream
	noSkip      bool                                      // what is left out begins no epoch
	noList      bool                                      // nobody looks who is listed
	noTick      bool                                      // silence is not noticed
	keepLease   bool                                      // streams are kept while their routes had run out
}

// enough is the number of schedules within which every bug must show.
const enough = 100_000

func TestSeededBugs(t *testing.T) {
	if underRace || testing.Short() {
		t.Skip("some bugs take thousands of schedules")
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			seed, failed, ran := search(max(b.from, 1), testkit.Times(enough).Rounds(), &b)
			if !failed {
				t.Fatalf("not noticed in %d schedules", ran)
			}
			pool := &tasks{}
			defer pool.close()
			t.Logf("seed %d, after %d schedules: %s", seed, ran,
				explore(newChooser(seed), pool, &b, stepsOf(seed), false).failed)
		})
	}
}

var bugs = []bug{
	{name: "older member list", source: oldMembers, deliver: untargeted},
	{name: "newer position than what was read", source: newerPosition},
	{name: "events without a removal", source: keptMembers, deliver: func(_ *world, d *delivery.Delivery) {
		d.Events = withoutRemovals(d.Events)
	}},
	{name: "user's row read first", read: rowFirst},
	{name: "repair without targets", from: 5393, deliver: untargeted},
	{name: "no repair", noRepair: true},
	{name: "repair left out before the change was applied", from: 10703,
		ask: func(d *delivery.Delivery) { d.Version = 0 }},
	{name: "repair left out whatever the membership", from: 620, ask: func(d *delivery.Delivery) {
		d.MembershipVersion, d.Targets = 0, nil
	}},
	{name: "stream not woken", deaf: true},
	{name: "hole ignored", frame: skipping},
	{name: "token that advances by itself", from: 322388, frame: func(c *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
		if f.GetHeartbeat().GetToken() != "" {
			return one(&deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{
				Heartbeat: &deliveryv1.Heartbeat{Token: c.p.view.NewToken(c.d.user, view.Start{At: c.w.now})}}})
		}
		return one(f)
	}},
	{name: "change delivered twice", frame: func(c *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
		if f.GetMessage() != nil && c.w.choose.chance(200) {
			again := &deliveryv1.Frame{ChatId: f.GetChatId(), AfterVersion: f.GetVersion(), Version: f.GetVersion() + 1,
				Body: f.GetBody()}
			return []*deliveryv1.Frame{f, again}
		}
		return one(f)
	}},
	{name: "frame applied without looking at after_version",
		frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
			return one(&deliveryv1.Frame{ChatId: f.GetChatId(), Version: f.GetVersion(), Body: f.GetBody()})
		}},
	{name: "events filtered by present membership", frame: func(c *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
		if f.GetVersion() > 0 && c.w.chat(f.GetChatId()).open(c.d.user) == nil {
			return nil
		}
		return one(f)
	}},
	{name: "full list taken as an addition", frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
		if h := f.GetHello(); h.GetFull() {
			return one(&deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{StreamId: h.GetStreamId(),
				Generation: h.GetGeneration()}}})
		}
		return one(f)
	}},
	{name: "old NOT_A_MEMBER counts", from: 580, notAMember: true,
		frame: func(_ *conn, f *deliveryv1.Frame) []*deliveryv1.Frame { return one(f) }},
	{name: "preview not blanked", answer: func(w *world, _ string, res proto.Message) {
		if r, ok := res.(*chatv1.GetChatResponse); ok && r.GetOverview().GetHead().GetLastMessage() == nil {
			h := r.GetOverview().GetHead()
			if m := w.chat(r.GetOverview().GetChat().GetChatId()).message(h.GetSequence()); m != nil {
				h.LastMessage = &chatv1.MessagePreview{Sequence: h.GetSequence(), SenderId: m.GetSenderId(), Text: m.GetContent()}
			}
		}
	}},
	{name: "idempotency row not written", plan: func(_ *world, p *store.Plan) {
		p.Writes = slices.DeleteFunc(slices.Clone(p.Writes),
			func(wr store.Write) bool { return wr.Key.Table == store.IdempotencyKeys })
	}},
	{name: "membership of the sender read before the plan", plan: unconditional(store.DeliveryState)},
	{name: "head not compared", plan: unconditional(store.ChatCounters)},
	{name: "members not counted", plan: func(_ *world, p *store.Plan) {
		p.Writes = slices.Clone(p.Writes)
		for i := range p.Writes {
			if u := &p.Writes[i].Update; p.Writes[i].Key.Table == store.Chats {
				u.Set = slices.DeleteFunc(slices.Clone(u.Set), func(a store.Attr) bool { return a.Name == table.AttrMemberCount })
			}
		}
	}},
	{name: "token stored before versions", from: 100300,
		storage: func(s device.Storage) device.Storage { return &hasty{Storage: s} }},
	{name: "message not stored before it is sent", storage: func(s device.Storage) device.Storage { return forgetful{s} }},
}

func one(f *deliveryv1.Frame) []*deliveryv1.Frame { return []*deliveryv1.Frame{f} }

func untargeted(_ *world, d *delivery.Delivery) { d.Targets = nil }

// unconditional takes away the conditions on a table in plans that store a message.
func unconditional(t store.Table) func(*world, *store.Plan) {
	return func(_ *world, p *store.Plan) {
		if !slices.ContainsFunc(p.Writes, func(wr store.Write) bool { return wr.Key.Table == store.Messages }) {
			return
		}
		p.Writes = slices.Clone(p.Writes)
		for i := range p.Writes {
			if p.Writes[i].Key.Table == t {
				p.Writes[i].Cond, p.Writes[i].Name = nil, ""
			}
		}
	}
}

// rowFirst gives a task the user's row as it was when the task read it first.
func rowFirst(w *world, k store.Key, it store.Item) store.Item {
	if k.Table != store.DeliveryState || w.current == nil {
		return it
	}
	if old, ok := w.current.rows[k]; ok {
		return old
	}
	if w.current.rows == nil {
		w.current.rows = map[store.Key]store.Item{}
	}
	w.current.rows[k] = it
	return it
}

// skipping loses changes of a stream and has the next one follow on what the
// device has.
func skipping(c *conn, f *deliveryv1.Frame) []*deliveryv1.Frame {
	id, v := f.GetChatId(), f.GetVersion()
	if v == 0 || f.GetAfterVersion() != v-1 {
		return one(f)
	}
	if c.w.choose.chance(200) {
		if c.seen[id] == 0 {
			c.seen[id] = f.GetAfterVersion()
		}
		return nil
	}
	after := f.GetAfterVersion()
	if c.seen[id] != 0 {
		after = c.seen[id]
		delete(c.seen, id)
	}
	return one(&deliveryv1.Frame{ChatId: id, AfterVersion: after, Version: v, Body: f.GetBody()})
}

// believe has the device act on an old NOT_A_MEMBER as on a removal.
func (d *phone) believe(req proto.Message) {
	named, ok := req.(interface{ GetChatId() string })
	if !ok || d.conn == nil || d.conn.broken {
		return
	}
	v, ok := d.m.View(named.GetChatId())
	if !ok {
		return
	}
	c := d.conn
	first := c.seen[""] + 1
	c.seen[""]++
	d.m.Frames(c.call, &deliveryv1.SubscribeResponse{FirstPosition: first, Frames: []*deliveryv1.Frame{{
		ChatId: v.ChatID, Version: v.Newest + 1,
		Body: &deliveryv1.Frame_MembershipChange{MembershipChange: &messagev1.MembershipChange{UserId: d.user,
			Kind: messagev1.MembershipChange_KIND_REMOVED}},
	}}})
	d.drain()
}

type sourceOf struct {
	delivery.Source
	w       *world
	members map[string][]string
}

// oldMembers reads each member list once and for all, but says that it is new.
func oldMembers(w *world, s delivery.Source) delivery.Source {
	return &oldMemberSource{sourceOf{Source: s, w: w, members: map[string][]string{}}}
}

type oldMemberSource struct{ sourceOf }

func (s *oldMemberSource) MemberIDs(ctx context.Context, chatID string) (int64, []string, error) {
	v, users, err := s.Source.MemberIDs(ctx, chatID)
	if old, ok := s.members[chatID]; ok {
		return v, old, err
	}
	if err == nil {
		s.members[chatID] = users
	}
	return v, users, err
}

// newerPosition takes the position of an overview from what was committed since.
func newerPosition(w *world, s delivery.Source) delivery.Source {
	return &newerSource{sourceOf{Source: s, w: w}}
}

type newerSource struct{ sourceOf }

func (s *newerSource) Overviews(ctx context.Context, user string, ids []string) ([]*chatv1.ChatOverview, error) {
	list, err := s.Source.Overviews(ctx, user, ids)
	for _, ov := range list {
		ov.Head.Version = int64(len(s.w.chat(ov.GetChat().GetChatId()).entries))
	}
	return list, err
}

// keptMembers hides removals from hubs.
func keptMembers(w *world, s delivery.Source) delivery.Source {
	return &keptSource{sourceOf{Source: s, w: w}}
}

type keptSource struct{ sourceOf }

func (s *keptSource) Events(ctx context.Context, chatID string, after int64, limit int) ([]event.Event, error) {
	events, err := s.Source.Events(ctx, chatID, after, limit)
	return withoutRemovals(events), err
}

func withoutRemovals(events []event.Event) []event.Event {
	events = slices.Clone(events)
	for i, e := range events {
		if m, ok := e.(*eventv1.MembershipChanged); ok &&
			m.GetChangeType() == eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED {
			m = proto.CloneOf(m)
			m.ChangeType = eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED
			events[i] = m
		}
	}
	return events
}

// hasty stores the token at once and everything else with the next batch.
type hasty struct {
	device.Storage
	held *device.Batch
}

func (s *hasty) Store(b *device.Batch) error {
	if s.held != nil {
		if err := s.Storage.Store(s.held); err != nil {
			return err
		}
	}
	s.held = &device.Batch{Removed: b.Removed, Chats: b.Chats}
	return s.Storage.Store(&device.Batch{Session: b.Session, Outbox: b.Outbox, Done: b.Done})
}

func (s *hasty) Load() (*device.Snapshot, error) {
	s.held = nil
	return s.Storage.Load()
}

type forgetful struct{ device.Storage }

func (s forgetful) Store(b *device.Batch) error {
	b.Outbox = nil
	return s.Storage.Store(b)
}
