package api

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
)

// parallelMarks is how many read marks of an Ack are recorded beside each other: the store
// commits them together.
const parallelMarks = 8

// recordMarks records read marks, each as MarkRead does. A refusal concerns its own mark
// only; any other error is that of all.
func (h *deliveryHandler) recordMarks(
	ctx context.Context, marks []*deliveryv1.ReadMark,
) ([]*deliveryv1.ReadOutcome, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	outcomes, errs := make([]*deliveryv1.ReadOutcome, len(marks)), make([]error, len(marks))
	if len(marks) == 1 {
		outcomes[0], errs[0] = h.recordMark(ctx, marks[0])
		return outcomes, errs[0]
	}
	var wg sync.WaitGroup
	room := make(chan struct{}, parallelMarks)
	for i, m := range marks {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			defer func() { // the recovery of the handler's goroutine does not cover this one
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("%w: %v\n%s", chat.ErrPanic, p, debug.Stack())
				}
			}()
			outcomes[i], errs[i] = h.recordMark(ctx, m)
		})
	}
	wg.Wait()
	return outcomes, errors.Join(errs...)
}

func (h *deliveryHandler) recordMark(ctx context.Context, m *deliveryv1.ReadMark) (*deliveryv1.ReadOutcome, error) {
	out, err := h.chat.MarkRead(ctx,
		chat.MarkRead{Caller: caller(ctx), ChatID: m.GetChatId(), Sequence: m.GetSequence()})
	switch {
	case err == nil:
		return &deliveryv1.ReadOutcome{State: h.view.State(out.Head, out.Row)}, nil
	case errors.Is(err, chat.ErrNotAMember):
		return &deliveryv1.ReadOutcome{Reason: reasonOf(chat.ErrNotAMember)}, nil
	}
	return nil, err
}
