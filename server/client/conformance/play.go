package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/device"
)

// Mistake stands between a scenario and the machine and changes what passes, as a client
// with that mistake would. Its zero value makes none.
type Mistake struct {
	Frames func(p *Player, res *deliveryv1.SubscribeResponse)
	Ended  func(p *Player, why *device.Failure) *device.Failure
	Result func(p *Player, k device.Kind, res proto.Message, why *device.Failure) (proto.Message, *device.Failure)
	Calls  func(p *Player, calls []device.Call) []device.Call
	Batch  func(p *Player, b *device.Batch)
	Now    func(at time.Time) time.Time
}

// Player is a scenario under way.
type Player struct {
	// Machine is that of the device, Position that of the last frame it got: for mistakes.
	Machine  *device.Machine
	Position int64

	scenario *Scenario
	mistake  Mistake
	cfg      device.Config
	storage  *client.Memory
	now      time.Time
	nextID   string
	calls    map[int64]device.Call // by the scenario's number
	eyes     eyes
	chats    map[string]*shown // that are expected
	outbox   []string
}

// Play has the reference machine go through a scenario. An error says what was not as it
// must be, and at which step.
func Play(s *Scenario, mistake Mistake) error {
	p := &Player{scenario: s, mistake: mistake, storage: &client.Memory{}, calls: map[int64]device.Call{},
		eyes: eyes{}, chats: map[string]*shown{}}
	p.cfg = device.Config{UserID: s.User, Clock: func() time.Time { return p.now }, Rand: func() float64 { return Random },
		NewID: func() string { return p.nextID }, PageSize: s.PageSize, SubscribeFirst: s.SubscribeFirst,
		Silence: time.Duration(s.Silence) * time.Millisecond}
	if err := p.restart(); err != nil {
		return err
	}
	for i := range s.Steps {
		if err := p.step(&s.Steps[i]); err != nil {
			return fmt.Errorf("%s, step %d: %w", s.Name, i+1, err)
		}
	}
	return nil
}

func (p *Player) restart() error {
	snapshot, err := p.storage.Load()
	p.Machine = device.New(p.cfg, snapshot)
	return err
}

func (p *Player) step(s *Step) error {
	p.now = epoch().Add(time.Duration(s.At) * time.Millisecond)
	if p.mistake.Now != nil {
		p.now = p.mistake.Now(p.now)
	}
	for i := range s.Do {
		if err := p.input(&s.Do[i]); err != nil {
			return fmt.Errorf("%s: %w", s.Do[i].Do, err)
		}
	}
	batch, calls := p.Machine.Take()
	events, changed := eventsOf(p.Machine.Events())
	if p.mistake.Batch != nil {
		p.mistake.Batch(p, &batch)
	}
	if err := p.storage.Store(&batch); err != nil {
		return err
	}
	if p.mistake.Calls != nil {
		calls = p.mistake.Calls(p, calls)
	}
	if err := p.match(s.Calls, calls); err != nil {
		return err
	}
	if !slices.Equal(events, s.Events) {
		return fmt.Errorf("events are %+v, not %+v", events, s.Events)
	}
	if err := p.compare(s, changed); err != nil {
		return err
	}
	return p.deadline(s)
}

func (p *Player) input(in *Input) error {
	m := p.Machine
	switch in.Do {
	case "restart":
		return p.restart()
	case "resume":
		m.Resume()
	case "open":
		m.Open(in.Chat)
	case "evict":
		m.Evict(in.Chat)
	case "loadOlder":
		m.LoadOlder(in.Chat)
	case "markRead":
		m.MarkRead(in.Chat, in.Sequence)
	case "send":
		p.nextID = in.ID
		m.Send(in.Chat, in.Content)
	case "learn":
		overview := &chatv1.ChatOverview{}
		if err := protojson.Unmarshal(in.Message, overview); err != nil {
			return err
		}
		m.Learn(overview, in.History)
	default:
		return p.outcome(in)
	}
	return nil
}

// outcome gives the machine what became of a call.
func (p *Player) outcome(in *Input) error {
	c, ok := p.calls[in.Call]
	if !ok {
		return fmt.Errorf("no call %d was made", in.Call)
	}
	res, err := answer(c.Kind, in.Message)
	if err != nil {
		return err
	}
	why, err := in.Failure.device()
	if err != nil {
		return err
	}
	switch in.Do {
	case "frames":
		r, ok := res.(*deliveryv1.SubscribeResponse)
		if !ok {
			return fmt.Errorf("call %d has no frames", in.Call)
		}
		if p.mistake.Frames != nil {
			p.mistake.Frames(p, r)
		}
		p.Machine.Frames(c.ID, r)
		p.Position += int64(len(r.GetFrames()))
	case "ended":
		if p.mistake.Ended != nil {
			why = p.mistake.Ended(p, why)
		}
		p.Machine.StreamEnded(c.ID, why)
	case "result":
		if p.mistake.Result != nil {
			res, why = p.mistake.Result(p, c.Kind, res, why)
		}
		p.Machine.Result(c.ID, res, in.History, why)
	default:
		return fmt.Errorf("nobody knows %q", in.Do)
	}
	return nil
}

// match demands that calls are those that are expected, in any order.
func (p *Player) match(want []Call, got []device.Call) error {
	open := slices.Clone(want)
	for _, c := range got {
		now := Call{Kind: kinds[c.Kind].name, History: c.History}
		if c.Request != nil {
			now.Request = encode(c.Request)
		}
		i := slices.IndexFunc(open, func(w Call) bool {
			return w.Kind == now.Kind && bytes.Equal(w.Request, now.Request) && w.History == now.History &&
				(c.Kind != device.CloseStream || p.calls[w.Stream].ID == c.Stream)
		})
		if i < 0 {
			return fmt.Errorf("call %s %s %q is not one of %s", now.Kind, now.Request, now.History, text(open))
		}
		if c.Kind == device.Subscribe {
			p.Position = 0
		}
		if open[i].Call != 0 {
			p.calls[open[i].Call] = c
		}
		open = slices.Delete(open, i, i+1)
	}
	if len(open) > 0 {
		return fmt.Errorf("calls are missing: %s", text(open))
	}
	return nil
}

// compare demands that what is shown is what is expected, and that the app was notified of
// each chat that changed.
func (p *Player) compare(s *Step, changed map[string]bool) error {
	for id, want := range s.Chats {
		if err := p.expect(id, want); err != nil {
			return err
		}
		if !changed[id] && !slices.ContainsFunc(s.Do, func(in Input) bool { return in.Do == "restart" }) {
			return fmt.Errorf("the app is not notified that %s changed", id)
		}
	}
	now := p.eyes.listed(p.Machine)
	for id := range merged(p.chats, now) {
		if diff, differs := patch(p.chats[id], now[id]); differs {
			return fmt.Errorf("chat %s has %s instead", id, text(diff))
		}
	}
	if s.Outbox != nil {
		p.outbox = *s.Outbox
	}
	if got := outboxOf(p.Machine); !slices.Equal(got, p.outbox) {
		return fmt.Errorf("the outbox is %v, not %v", got, p.outbox)
	}
	return nil
}

// expect takes a patch into what is expected.
func (p *Player) expect(id string, want Patch) error {
	if want == nil {
		delete(p.chats, id)
		return nil
	}
	c := p.chats[id]
	if c == nil {
		c = newShown()
		p.chats[id] = c
	}
	for name, v := range want {
		switch {
		case name == "cleared":
			clear(c.messages)
		case name == "messages":
		case string(v) == "null":
			delete(c.fields, name)
		default:
			c.fields[name] = v
		}
	}
	var list []json.RawMessage
	if raw := want["messages"]; raw != nil {
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
	}
	for _, raw := range list {
		var m struct {
			Sequence int64 `json:"sequence,string"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		c.messages[m.Sequence] = raw
	}
	return nil
}

func (p *Player) deadline(s *Step) error {
	at, ok := p.Machine.Deadline()
	switch {
	case ok != (s.Next != nil):
		return fmt.Errorf("has something to do later: %t, not %t", ok, !ok)
	case ok && at.Sub(epoch()).Milliseconds() != *s.Next:
		return fmt.Errorf("wants to be asked again at %d, not %d", at.Sub(epoch()).Milliseconds(), *s.Next)
	}
	return nil
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
