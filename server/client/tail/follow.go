package tail

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// Reasons that a Tail acts on.
const (
	reasonNotAMember     = "NOT_A_MEMBER"
	reasonInvalidToken   = "INVALID_TOKEN"
	reasonSessionRevoked = "SESSION_REVOKED"
	reasonHistory        = "HISTORY_CHANGED"
)

// reason is the stable name that the server gave an error; empty if it gave none.
func reason(err error) string {
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return ""
	}
	for _, d := range remote.Details() {
		v, err := d.Value()
		if info, ok := v.(*errdetails.ErrorInfo); ok && err == nil {
			return info.GetReason()
		}
	}
	return ""
}

// list reads the list of all chats, and what is missing of each. The first list only says
// where the Tail begins, unless all is wanted.
func (t *Tail) list(ctx context.Context) error {
	for page := ""; ; {
		res, said, err := timed(ctx, t, t.delivery.Sync, &deliveryv1.SyncRequest{PageToken: page, PageSize: pageSize})
		if err != nil {
			return err
		}
		if !said {
			if err := t.generation(res.GetGeneration()); err != nil {
				return err
			}
		}
		for _, ov := range res.GetOverviews() {
			id, head := ov.GetChat().GetChatId(), ov.GetHead()
			if !t.begun && !t.all {
				t.at.Chats[id] = Mark{Version: head.GetVersion(), Sequence: head.GetSequence()}
			} else if err := t.catchUp(ctx, id, head.GetVersion()); err != nil && reason(err) != reasonNotAMember {
				return err
			}
		}
		if page = res.GetNextPageToken(); page == "" {
			t.begun = true
			return t.save(res.GetToken())
		}
	}
}

// stream reads one stream to its end.
func (t *Tail) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := time.AfterFunc(silence, cancel)
	defer watch.Stop()
	generation := "" // of the stream
	ctx, _ = t.ask(ctx)
	stream, err := t.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{Token: t.at.Token})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		watch.Stop() // what takes its changes may take its time
		if err := t.follows(stream.Msg(), &generation); err != nil {
			return err
		}
		for _, f := range stream.Msg().GetFrames() {
			if err := t.frame(ctx, f); err != nil {
				return err
			}
		}
		watch.Reset(silence)
	}
	return stream.Err()
}

// frame handles one frame of the stream. Changes that a frame shows to be missing are read
// before the next frame, so that a token stands for all that came before it.
func (t *Tail) frame(ctx context.Context, f *deliveryv1.Frame) error {
	id := f.GetChatId()
	switch b := f.GetBody().(type) {
	case *deliveryv1.Frame_Hello:
	case *deliveryv1.Frame_Heartbeat:
		if token := b.Heartbeat.GetToken(); token != "" {
			t.tries, t.again = 0, false
			return t.save(token)
		}
	case *deliveryv1.Frame_End:
		t.end = b.End
		if token := b.End.GetToken(); token != "" {
			return t.save(token)
		}
	case *deliveryv1.Frame_Reset_:
		if id == "" {
			return t.startOver("")
		}
		return t.reload(ctx, id, b.Reset_.GetVersion())
	case *deliveryv1.Frame_Head:
		err := t.catchUp(ctx, id, max(b.Head.GetVersion(), b.Head.GetOverview().GetHead().GetVersion()))
		if reason(err) != reasonNotAMember { // else the removal is on its way
			return err
		}
	case *deliveryv1.Frame_MemberState: // of the user's other devices, or of what the other of two has read
	default:
		return t.change(ctx, f)
	}
	return nil
}

// change shows a change that follows on what was shown, and otherwise reads what is
// missing, with it.
func (t *Tail) change(ctx context.Context, f *deliveryv1.Frame) error {
	at := t.at.Chats[f.GetChatId()].Version
	switch {
	case f.GetChatId() == "" || f.GetVersion() <= at:
		return nil
	case f.GetAfterVersion() > at:
		if err := t.catchUp(ctx, f.GetChatId(), f.GetVersion()); reason(err) != reasonNotAMember {
			return err
		}
		// Nothing before this is the user's to read any more: it is the removal.
	}
	if err := t.show(f); err != nil {
		return err
	}
	t.advance(f.GetChatId(), f.GetVersion())
	return nil
}

// catchUp shows the changes of a chat up to a version, and more if there are more.
func (t *Tail) catchUp(ctx context.Context, id string, version int64) error {
	for t.at.Chats[id].Version < version {
		after := t.at.Chats[id].Version
		res, _, err := timed(ctx, t, t.messages.ListChanges,
			&messagev1.ListChangesRequest{ChatId: id, AfterVersion: after, PageSize: pageSize})
		switch {
		case err != nil:
			return err
		case res.GetReset_():
			return t.reload(ctx, id, res.GetVersion())
		case res.GetVersion() <= after:
			return errBehind(id)
		}
		for _, c := range res.GetChanges() {
			if err := t.show(frameOf(id, t.at.Chats[id].Version, c)); err != nil {
				return err
			}
			t.advance(id, c.GetVersion())
		}
		t.advance(id, res.GetVersion())
	}
	return nil
}

// reload shows that changes are lost up to a version, and the messages, which are not.
func (t *Tail) reload(ctx context.Context, id string, version int64) error {
	if version <= t.at.Chats[id].Version {
		return nil
	}
	after := t.at.Chats[id].Sequence
	if err := t.show(&deliveryv1.Frame{ChatId: id, AfterVersion: t.at.Chats[id].Version, Version: version,
		Body: &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{Version: version}}}); err != nil {
		return err
	}
	for more := true; more; {
		res, _, err := timed(ctx, t, t.messages.ListMessages,
			&messagev1.ListMessagesRequest{ChatId: id, AfterSequence: &after, PageSize: pageSize})
		if err != nil {
			return err
		}
		for _, m := range res.GetMessages() {
			after = m.GetSequence()
			if err := t.show(&deliveryv1.Frame{ChatId: id, AfterVersion: m.GetVersion() - 1, Version: m.GetVersion(),
				Body: &deliveryv1.Frame_Message{Message: m}}); err != nil {
				return err
			}
		}
		more = res.GetHasMore()
	}
	// Not that of the last message: other changes may lie between. Messages are known by
	// their sequences.
	t.advance(id, version)
	return nil
}

// show emits a change, but no message twice and nothing that is not known here.
func (t *Tail) show(f *deliveryv1.Frame) error {
	if f.GetBody() == nil {
		return nil
	}
	m := t.at.Chats[f.GetChatId()]
	if msg := f.GetMessage(); msg != nil && msg.GetSequence() <= m.Sequence {
		return nil
	}
	if err := t.cfg.Emit(f); err != nil {
		return &localError{err}
	}
	if msg := f.GetMessage(); msg != nil {
		m.Sequence = msg.GetSequence()
		t.at.Chats[f.GetChatId()] = m
	}
	return nil
}

func (t *Tail) advance(id string, version int64) {
	m := t.at.Chats[id]
	m.Version = max(m.Version, version)
	t.at.Chats[id] = m
}

// save takes a token over, before which all was shown.
func (t *Tail) save(token string) error {
	if token == t.at.Token {
		return nil
	}
	t.at.Token = token
	if err := t.cfg.Saved(t.Position()); err != nil {
		return &localError{err}
	}
	return nil
}

// generation starts over if the store of a server that does not compare histories is another one.
func (t *Tail) generation(g string) error {
	if g == "" || g == t.at.Generation {
		return nil
	}
	if t.at.Generation != "" {
		return t.startOver(g)
	}
	t.at.Generation = g
	return nil
}

// startOver drops all versions: the store is not the one that they are of. Changes between
// the two stores cannot be distinguished from earlier ones.
func (t *Tail) startOver(generation string) error {
	t.at = Position{Generation: generation, Chats: map[string]Mark{}}
	t.begun, t.all = false, false
	if err := t.show(&deliveryv1.Frame{Body: &deliveryv1.Frame_Reset_{Reset_: &deliveryv1.Reset{}}}); err != nil {
		return err
	}
	return errStartOver
}

// frameOf is a change as a stream brings it.
func frameOf(chatID string, after int64, c *messagev1.Change) *deliveryv1.Frame {
	f := &deliveryv1.Frame{ChatId: chatID, AfterVersion: after, Version: c.GetVersion()}
	switch b := c.GetBody().(type) {
	case *messagev1.Change_Message:
		f.Body = &deliveryv1.Frame_Message{Message: b.Message}
	case *messagev1.Change_MembershipChange:
		f.Body = &deliveryv1.Frame_MembershipChange{MembershipChange: b.MembershipChange}
	case *messagev1.Change_Chat:
		f.Body = &deliveryv1.Frame_Chat{Chat: b.Chat}
	}
	return f
}
