package topicproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/gen/parley/link/v1/linkv1connect"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/link/caller"
	"github.com/parley-chat/parley/server/topic"
)

// DeadLetters finds the dead letters of all topics, in the slots of the servers. Its lists are
// in the order of the slots, and in each as those of a DeadLetterStore: a list resumes at a
// position. The topic of the position determines the slot, and another server may have the slot
// by then.
//
// A call that finds no owner is repeated for a while: to read changes nothing, and an action
// on a dead letter happens once. Errors are those of the servers, and topic.ErrNoServer.
type DeadLetters struct {
	servers Servers
	slots   func(context.Context) (int, error)
}

// NewDeadLetters makes a DeadLetters. slots returns how many slots the topics are dealt to, 0 if
// no server has ever had topics.
func NewDeadLetters(servers Servers, slots func(context.Context) (int, error)) *DeadLetters {
	return &DeadLetters{servers, slots}
}

// Tries of a call, and the pause before the next one.
const (
	maxTries = 10
	pause    = time.Second
)

// maxChecked is how many dead letters are asked about at once.
const maxChecked = 1000

// Scan passes the dead letters that are meant to f, from a position on. An error of f ends it.
func (s *DeadLetters) Scan(
	ctx context.Context, sel topic.DeadLetterSelection, from topic.DeadLetterPosition, f func(topic.DeadLetter) error,
) error {
	n, err := s.slots(ctx)
	if err != nil || n == 0 {
		return err
	}
	first := 0
	if from.Log != "" {
		first = topic.SlotOf(from.Log, n)
	}
	for slot := first; slot < n; slot++ {
		has := func(log string) bool { return topic.SlotOf(log, n) == slot }
		if !meant(&sel, has) {
			continue
		}
		m := topic.SelectionToWire(&sel, has, func(number uint64) bool { return number%uint64(n) == uint64(slot) })
		req := &linkv1.ScanLettersRequest{Slot: int32(slot), Selection: m,
			From: topic.PositionToWire(topic.DeadLetterPosition{})}
		if slot == first {
			req.From = topic.PositionToWire(from)
		}
		if err := s.scan(ctx, req, f); err != nil {
			return err
		}
	}
	return nil
}

// meant reports whether dead letters that are meant may be in a slot.
func meant(sel *topic.DeadLetterSelection, has func(log string) bool) bool {
	if sel.Topic != "" && !has(sel.Topic) {
		return false
	}
	if len(sel.Positions) > 0 && !slices.ContainsFunc(sel.Positions,
		func(p topic.DeadLetterPosition) bool { return has(p.Log) }) {
		return false
	}
	if sel.Logs == nil {
		return true
	}
	for name := range sel.Logs {
		if has(name) {
			return true
		}
	}
	return false
}

// scan passes on the dead letters of a slot.
func (s *DeadLetters) scan(ctx context.Context, req *linkv1.ScanLettersRequest, f func(topic.DeadLetter) error) error {
	for {
		var page *linkv1.ScanLettersResponse
		err := s.call(ctx, func(ctx context.Context, c linkv1connect.LetterServiceClient) (err error) {
			page, err = c.ScanLetters(ctx, req)
			return err
		})
		if err != nil {
			return err
		}
		for _, m := range page.GetLetters() {
			if err := f(topic.DeadLetterFromWire(m)); err != nil {
				return err
			}
		}
		if page.GetNext() == nil {
			return nil
		}
		req.From = page.GetNext()
	}
}

// There reports of each dead letter whether the topic in which it stands is the one in which it
// was found.
func (s *DeadLetters) There(ctx context.Context, list []topic.DeadLetter) ([]bool, error) {
	type log struct {
		name   string
		number uint64
	}
	there := map[log]bool{}
	bySlot := map[int][]topic.DeadLetter{} // one of each topic
	n, err := s.slots(ctx)
	if err != nil || n == 0 {
		return make([]bool, len(list)), err
	}
	for _, l := range list {
		of := log{l.LogPosition.Log, l.Number}
		if _, ok := there[of]; ok {
			continue
		}
		there[of] = false
		slot := topic.SlotOf(of.name, n)
		bySlot[slot] = append(bySlot[slot], l)
	}
	for slot, some := range bySlot {
		for chunk := range slices.Chunk(some, maxChecked) {
			res, err := s.check(ctx, slot, chunk)
			if err != nil {
				return nil, err
			}
			for i, l := range chunk {
				there[log{l.LogPosition.Log, l.Number}] = res.GetThere()[i]
			}
		}
	}
	out := make([]bool, len(list))
	for i, l := range list {
		out[i] = there[log{l.LogPosition.Log, l.Number}]
	}
	return out, nil
}

// Taken reports whether the group of a dead letter would take its message again.
func (s *DeadLetters) Taken(ctx context.Context, l topic.DeadLetter) (bool, error) {
	slot, err := s.slotOf(ctx, l)
	if err != nil {
		return false, err
	}
	res, err := s.check(ctx, slot, []topic.DeadLetter{l})
	if err != nil {
		return false, err
	}
	return res.GetTaken()[0], nil
}

// check asks about dead letters of one slot.
func (s *DeadLetters) check(
	ctx context.Context, slot int, list []topic.DeadLetter,
) (*linkv1.CheckLettersResponse, error) {
	req := &linkv1.CheckLettersRequest{Slot: int32(slot)}
	for _, l := range list {
		req.Letters = append(req.Letters, topic.DeadLetterRefToWire(l))
	}
	var res *linkv1.CheckLettersResponse
	err := s.call(ctx, func(ctx context.Context, c linkv1connect.LetterServiceClient) (err error) {
		res, err = c.CheckLetters(ctx, req)
		return err
	})
	if err == nil && (len(res.GetThere()) != len(list) || len(res.GetTaken()) != len(list)) {
		err = errors.New("topicproxy: a server does not answer for each letter")
	}
	return res, err
}

// Redrive gives a message to the group that gave it up, and returns when that is durable.
// Error: topic.ErrDeadLetterGone.
func (s *DeadLetters) Redrive(ctx context.Context, l topic.DeadLetter) error {
	return s.do(ctx, l, func(ctx context.Context, c linkv1connect.LetterServiceClient, slot int32) (bool, error) {
		res, err := c.RedriveLetter(ctx, &linkv1.RedriveLetterRequest{Slot: slot, Letter: topic.DeadLetterRefToWire(l)})
		return res.GetGone(), err
	})
}

// Discard gives a message up for its group. Error: topic.ErrDeadLetterGone.
func (s *DeadLetters) Discard(ctx context.Context, l topic.DeadLetter) error {
	if !l.LogPosition.Parked {
		return nil // it stays in its topic
	}
	return s.do(ctx, l, func(ctx context.Context, c linkv1connect.LetterServiceClient, slot int32) (bool, error) {
		res, err := c.DiscardLetter(ctx, &linkv1.DiscardLetterRequest{Slot: slot, Letter: topic.DeadLetterRefToWire(l)})
		return res.GetGone(), err
	})
}

func (s *DeadLetters) do(
	ctx context.Context, l topic.DeadLetter,
	what func(context.Context, linkv1connect.LetterServiceClient, int32) (gone bool, err error),
) error {
	slot, err := s.slotOf(ctx, l)
	if err != nil {
		return err
	}
	var gone bool
	err = s.call(ctx, func(ctx context.Context, c linkv1connect.LetterServiceClient) (err error) {
		gone, err = what(ctx, c, int32(slot))
		return err
	})
	if err == nil && gone {
		err = topic.ErrDeadLetterGone
	}
	return err
}

// slotOf is the slot of a dead letter that was found.
func (s *DeadLetters) slotOf(ctx context.Context, l topic.DeadLetter) (int, error) {
	n, err := s.slots(ctx)
	if err == nil && n == 0 {
		err = topic.ErrDeadLetterGone
	}
	if err != nil {
		return 0, err
	}
	return topic.SlotOf(l.LogPosition.Log, n), nil
}

// call makes a call at any server, and again while there is none, or none has the slot.
func (s *DeadLetters) call(
	ctx context.Context, what func(context.Context, linkv1connect.LetterServiceClient) error,
) error {
	for tries := 1; ; tries++ {
		client, base, err := s.servers(ctx)
		if err == nil {
			err = what(ctx, linkv1connect.NewLetterServiceClient(introduced{client}, base))
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		said := connect.IsWireError(err) // a server has said it
		if said && connect.CodeOf(err) != connect.CodeUnavailable {
			return fmt.Errorf("dead letters of topics: %w", err)
		}
		if tries < maxTries && wait.For(ctx, pause) == nil {
			continue
		}
		if said {
			return fmt.Errorf("dead letters of topics: %w", err)
		}
		return fmt.Errorf("%w: %s", topic.ErrNoServer, err.Error())
	}
}

// introduced adds to each call that it comes from a process that serves operators.
type introduced struct{ connect.HTTPClient }

// Do implements connect.HTTPClient.
func (i introduced) Do(r *http.Request) (*http.Response, error) {
	if err := (caller.Caller{Principal: "operators", Operator: true}).Introduce(r.Header); err != nil {
		return nil, err
	}
	return i.HTTPClient.Do(r)
}
