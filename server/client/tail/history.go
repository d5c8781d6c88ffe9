package tail

import (
	"context"

	"connectrpc.com/connect"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/history"
)

// ask has a call say what was shown.
func (t *Tail) ask(ctx context.Context) (context.Context, connect.CallInfo) {
	ctx, info := connect.NewClientContext(ctx)
	if t.at.Generation != "" {
		info.RequestHeader().Set(history.Header, history.Commit{Generation: t.at.Generation, Commit: t.at.Commit}.String())
	}
	return ctx, info
}

// answered takes what an answer says. The call said all that was shown, and nothing else was shown
// since: so what the answer shows follows on that. It reports false for a server of an earlier
// release, which says nothing and compares nothing.
func (t *Tail) answered(info connect.CallInfo) bool {
	shows, ok := history.Parse(info.ResponseHeader().Get(history.Header))
	if ok {
		t.reach(shows.Generation, shows.Commit)
	}
	return ok
}

func (t *Tail) reach(generation string, commit int64) {
	if generation == t.at.Generation {
		commit = max(commit, t.at.Commit)
	}
	t.at.Generation, t.at.Commit = generation, commit
}

// follows takes what a response of a stream says, before its frames; generation is that of the
// stream's hello, empty before it. An answer of another generation may have come since the stream
// was opened: then what the stream brings may not be there any more.
func (t *Tail) follows(res *deliveryv1.SubscribeResponse, generation *string) error {
	if len(res.GetFrames()) > 0 && res.GetFrames()[0].GetHello() != nil {
		hello := res.GetFrames()[0].GetHello().GetGeneration()
		if res.GetCommit() == 0 {
			return t.generation(hello)
		}
		t.reach(hello, res.GetCommit())
		*generation = hello
		return nil
	}
	switch *generation {
	case "":
	case t.at.Generation:
		t.reach(*generation, res.GetCommit())
	default:
		return errRestarted
	}
	return nil
}

// timed makes a call that ends. said reports whether the server compares histories.
func timed[Q, S any](
	ctx context.Context, t *Tail, call func(context.Context, *Q) (*S, error), req *Q,
) (res *S, said bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ctx, info := t.ask(ctx)
	if res, err = call(ctx, req); err == nil {
		said = t.answered(info)
	}
	return res, said, err
}
