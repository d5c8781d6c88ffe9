package conformance

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/client/device"
)

// Recorder is a machine whose inputs and outputs become the steps of a Scenario. Without a
// Scenario it is only the machine. It draws [Random] for its waits.
type Recorder struct {
	*device.Machine
	// Idle has steps recorded at which time has passed and nothing happens.
	Idle bool

	scenario *Scenario
	clock    func() time.Time

	do     []Input // since the last step
	events []device.Event
	eyes   eyes
	chats  map[string]*shown
	outbox []string
	calls  map[int64]int64 // the scenario's number by the machine's
	made   int64
}

// Record returns the recorder of a device that starts for the first time. A nil scenario
// records nothing.
func Record(m *device.Machine, s *Scenario, clock func() time.Time) *Recorder {
	return &Recorder{Machine: m, scenario: s, clock: clock, eyes: eyes{}, chats: map[string]*shown{},
		calls: map[int64]int64{}}
}

// Restart has the recorder continue with the machine that the device's storage made. Input
// that was not taken from the one before is lost.
func (r *Recorder) Restart(m *device.Machine) *Recorder {
	next := Record(m, r.scenario, r.clock)
	next.do, next.made, next.chats, next.outbox = []Input{{Do: "restart"}}, r.made, r.chats, r.outbox
	next.Idle = r.Idle
	return next
}

func (r *Recorder) input(in Input) {
	if r.scenario != nil {
		r.do = append(r.do, in)
	}
}

// Open is the machine's.
func (r *Recorder) Open(chatID string) {
	r.input(Input{Do: "open", Chat: chatID})
	r.Machine.Open(chatID)
}

// Evict is the machine's.
func (r *Recorder) Evict(chatID string) {
	r.input(Input{Do: "evict", Chat: chatID})
	r.Machine.Evict(chatID)
}

// LoadOlder is the machine's.
func (r *Recorder) LoadOlder(chatID string) {
	r.input(Input{Do: "loadOlder", Chat: chatID})
	r.Machine.LoadOlder(chatID)
}

// MarkRead is the machine's.
func (r *Recorder) MarkRead(chatID string, sequence int64) {
	r.input(Input{Do: "markRead", Chat: chatID, Sequence: sequence})
	r.Machine.MarkRead(chatID, sequence)
}

// Send is the machine's.
func (r *Recorder) Send(chatID, content string) string {
	id := r.Machine.Send(chatID, content)
	r.input(Input{Do: "send", Chat: chatID, Content: content, ID: id})
	return id
}

// Learn is the machine's.
func (r *Recorder) Learn(overview *chatv1.ChatOverview, said string) {
	if r.scenario != nil {
		r.input(Input{Do: "learn", Message: encode(overview), History: said})
	}
	r.Machine.Learn(overview, said)
}

// Resume is the machine's.
func (r *Recorder) Resume() {
	r.input(Input{Do: "resume"})
	r.Machine.Resume()
}

// Frames is the machine's.
func (r *Recorder) Frames(call int64, res *deliveryv1.SubscribeResponse) {
	if r.scenario != nil {
		r.input(Input{Do: "frames", Call: r.calls[call], Message: encode(res)})
	}
	r.Machine.Frames(call, res)
}

// StreamEnded is the machine's.
func (r *Recorder) StreamEnded(call int64, why *device.Failure) {
	r.input(Input{Do: "ended", Call: r.calls[call], Failure: failureOf(why)})
	r.Machine.StreamEnded(call, why)
}

// Result is the machine's.
func (r *Recorder) Result(call int64, res proto.Message, history string, why *device.Failure) {
	if r.scenario != nil {
		in := Input{Do: "result", Call: r.calls[call], Failure: failureOf(why)}
		if res != nil && why == nil {
			in.Message, in.History = encode(res), history
		}
		r.input(in)
	}
	r.Machine.Result(call, res, history, why)
}

// Take is the machine's, and ends a step.
func (r *Recorder) Take() (device.Batch, []device.Call) {
	b, calls := r.Machine.Take()
	if r.scenario == nil {
		return b, calls
	}
	events := r.Machine.Events()
	r.events = append(r.events, events...)
	s := Step{At: r.clock().Sub(epoch()).Milliseconds(), Do: r.do}
	r.do = nil
	for _, c := range calls {
		s.Calls = append(s.Calls, r.call(c))
	}
	s.Events, _ = eventsOf(events)
	s.Chats, s.Outbox = r.changes()
	if at, ok := r.Machine.Deadline(); ok {
		next := at.Sub(epoch()).Milliseconds()
		s.Next = &next
	}
	steps := r.scenario.Steps
	passed := r.Idle && (len(steps) == 0 || steps[len(steps)-1].At != s.At)
	if len(s.Do)+len(s.Calls)+len(s.Events)+len(s.Chats) > 0 || s.Outbox != nil || passed {
		r.scenario.Steps = append(r.scenario.Steps, s)
	}
	return b, calls
}

// Events is the machine's.
func (r *Recorder) Events() []device.Event {
	if r.scenario == nil {
		return r.Machine.Events()
	}
	e := r.events
	r.events = nil
	return e
}

func (r *Recorder) call(c device.Call) Call {
	out := Call{Kind: kinds[c.Kind].name, History: c.History}
	if c.Kind == device.CloseStream {
		out.Stream = r.calls[c.Stream]
		return out
	}
	r.made++
	r.calls[c.ID], out.Call = r.made, r.made
	if c.Request != nil {
		out.Request = encode(c.Request)
	}
	return out
}

// changes are what changed of what is shown since the last step.
func (r *Recorder) changes() (map[string]Patch, *[]string) {
	now := r.eyes.listed(r.Machine)
	patches := map[string]Patch{}
	for id := range merged(r.chats, now) {
		if p, changed := patch(r.chats[id], now[id]); changed {
			patches[id] = p
		}
	}
	r.chats = now
	outbox := outboxOf(r.Machine)
	if slices.Equal(outbox, r.outbox) {
		return patches, nil
	}
	r.outbox = outbox
	return patches, &outbox
}

func merged(a, b map[string]*shown) map[string]*shown {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func outboxOf(m *device.Machine) []string {
	ids := []string{}
	for _, u := range m.Outbox() {
		ids = append(ids, u.ClientMessageID)
	}
	return ids
}
