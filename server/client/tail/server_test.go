package tail_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
)

// server keeps chats of one user and fails as often as it is told. It answers in pages of
// three.
type server struct {
	deliveryv1connect.UnimplementedDeliveryServiceHandler
	messagev1connect.UnimplementedMessageServiceHandler

	mu         sync.Mutex
	generation string
	log        []*deliveryv1.Frame // what was committed
	committed  chan struct{}       // closed by the next commit
	removed    string              // chat that the user is no member of
	rand       *rand.Rand
	faults     int                  // one of so many steps fails; 0: none
	keeps      int64                // changes kept of a chat; 0: all
	ends       []deliveryv1.EndCode // of the next streams
	refuses    []*connect.Error     // answers to the next subscriptions
	hangs      int                  // so many streams say nothing
	streams    int
	aborts     int             // failures that were
	bearers    map[string]bool // that were shown
}

const page = 3

func newServer(seed uint64) *server {
	return &server{generation: "g", committed: make(chan struct{}), rand: rand.New(rand.NewPCG(seed, 1)),
		bearers: map[string]bool{}}
}

// client is the way to the server, without a network.
func (s *server) client() connect.HTTPClient {
	mux := http.NewServeMux()
	mux.Handle(deliveryv1connect.NewDeliveryServiceHandler(s))
	mux.Handle(messagev1connect.NewMessageServiceHandler(s))
	return &http.Client{Transport: direct{mux, s}}
}

// commit adds a message, or for an empty text a membership, to a chat.
func (s *server) commit(chat, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := s.head(chat)
	f := &deliveryv1.Frame{ChatId: chat, AfterVersion: head.GetVersion(), Version: head.GetVersion() + 1}
	if text == "" {
		f.Body = &deliveryv1.Frame_MembershipChange{
			MembershipChange: &messagev1.MembershipChange{UserId: "x", Version: f.GetVersion()}}
	} else {
		f.Body = &deliveryv1.Frame_Message{Message: &messagev1.Message{ChatId: chat, Content: text,
			Sequence: head.GetSequence() + 1, Version: f.GetVersion()}}
	}
	s.log = append(s.log, f)
	close(s.committed)
	s.committed = make(chan struct{})
}

func (s *server) head(chat string) *chatv1.ChatHead {
	h := &chatv1.ChatHead{}
	for _, f := range s.log {
		if f.GetChatId() == chat {
			h.Version, h.Sequence = f.GetVersion(), max(h.GetSequence(), f.GetMessage().GetSequence())
		}
	}
	return h
}

// chats are those that changed from a position of the log on.
func (s *server) chats(from int) (ids []string) {
	seen := map[string]bool{}
	for _, f := range s.log[from:] {
		if id := f.GetChatId(); !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// failing says whether this step fails.
func (s *server) failing() bool {
	fails := s.faults > 0 && s.rand.IntN(s.faults) == 0
	if fails {
		s.aborts++
	}
	return fails
}

func (s *server) Sync(_ context.Context, r *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing() {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no luck"))
	}
	first, as := 0, len(s.log)
	if r.GetPageToken() != "" {
		fmt.Sscanf(r.GetPageToken(), "%d/%d", &first, &as)
	}
	res := &deliveryv1.SyncResponse{Generation: s.generation, Full: true}
	ids := s.chats(0)
	for _, id := range ids[first:min(first+page, len(ids))] {
		res.Overviews = append(res.Overviews, &chatv1.ChatOverview{Chat: &chatv1.Chat{ChatId: id}, Head: s.head(id)})
	}
	if first+page < len(ids) {
		res.NextPageToken = fmt.Sprintf("%d/%d", first+page, as)
	} else {
		res.Token = strconv.Itoa(as)
	}
	return res, nil
}

func (s *server) Subscribe(
	ctx context.Context, r *deliveryv1.SubscribeRequest, out *connect.ServerStream[deliveryv1.SubscribeResponse],
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
	if len(s.refuses) > 0 {
		err := s.refuses[0]
		s.refuses = s.refuses[1:]
		return err
	}
	send := func(frames ...*deliveryv1.Frame) {
		abort := s.failing()
		s.mu.Unlock()
		defer s.mu.Lock()
		if abort || out.Send(&deliveryv1.SubscribeResponse{Frames: frames}) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	heartbeat := func(n int) *deliveryv1.Frame {
		return &deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{
			Heartbeat: &deliveryv1.Heartbeat{Token: strconv.Itoa(n)}}}
	}
	head := func(id string) *deliveryv1.Frame {
		return &deliveryv1.Frame{ChatId: id, Body: &deliveryv1.Frame_Head{
			Head: &deliveryv1.Head{Version: s.head(id).GetVersion()}}}
	}
	if s.hangs > 0 {
		s.hangs--
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return ctx.Err()
	}
	send(&deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{Generation: s.generation}}})
	if len(s.ends) > 0 {
		code := s.ends[0]
		s.ends = s.ends[1:]
		send(&deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{Code: code}}})
		return connect.NewError(connect.CodeUnavailable, errors.New("the stream ended"))
	}
	from, err := strconv.Atoi(r.GetToken())
	if err != nil {
		return err
	}
	at := len(s.log)
	for _, id := range s.chats(min(from, at)) {
		send(head(id))
	}
	send(heartbeat(at))
	for ; ; at++ {
		for at == len(s.log) {
			woken := s.committed
			s.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-woken:
			}
			s.mu.Lock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		switch f := s.log[at]; s.rand.IntN(4) {
		case 0: // tells only that there is something
			send(head(f.GetChatId()))
		case 1:
			send(f, heartbeat(at+1))
		default:
			send(f)
		}
	}
}

// page returns what a chat has after a version or a sequence.
func (s *server) page(
	chat string, wanted func(*deliveryv1.Frame) bool,
) (frames []*deliveryv1.Frame, more bool, err error) {
	if chat == s.removed {
		err := connect.NewError(connect.CodePermissionDenied, errors.New("not a member"))
		if d, derr := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "NOT_A_MEMBER"}); derr == nil {
			err.AddDetail(d)
		}
		return nil, false, err
	}
	if s.failing() {
		return nil, false, connect.NewError(connect.CodeUnavailable, errors.New("no luck"))
	}
	for _, f := range s.log {
		if f.GetChatId() == chat && wanted(f) {
			frames = append(frames, f)
		}
	}
	return frames[:min(page, len(frames))], len(frames) > page, nil
}

func (s *server) ListChanges(
	_ context.Context, r *messagev1.ListChangesRequest,
) (*messagev1.ListChangesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames, _, err := s.page(r.GetChatId(), func(f *deliveryv1.Frame) bool { return f.GetVersion() > r.GetAfterVersion() })
	if err != nil {
		return nil, err
	}
	res := &messagev1.ListChangesResponse{Version: r.GetAfterVersion(), Head: s.head(r.GetChatId())}
	if s.keeps > 0 && res.GetHead().GetVersion()-r.GetAfterVersion() > s.keeps {
		res.Reset_, res.Version = true, res.GetHead().GetVersion()
		return res, nil
	}
	for _, f := range frames {
		c := &messagev1.Change{Version: f.GetVersion()}
		if m := f.GetMessage(); m != nil {
			c.Body = &messagev1.Change_Message{Message: m}
		} else {
			c.Body = &messagev1.Change_MembershipChange{MembershipChange: f.GetMembershipChange()}
		}
		res.Changes, res.Version = append(res.Changes, c), f.GetVersion()
	}
	return res, nil
}

func (s *server) ListMessages(
	_ context.Context, r *messagev1.ListMessagesRequest,
) (*messagev1.ListMessagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames, more, err := s.page(r.GetChatId(), func(f *deliveryv1.Frame) bool {
		return f.GetMessage().GetSequence() > r.GetAfterSequence()
	})
	if err != nil {
		return nil, err
	}
	res := &messagev1.ListMessagesResponse{HasMore: more, Head: s.head(r.GetChatId())}
	for _, f := range frames {
		res.Messages = append(res.Messages, f.GetMessage())
	}
	return res, nil
}

// direct runs handlers in the process; a handler that aborts cuts the answer off.
type direct struct {
	handler http.Handler
	server  *server
}

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	d.server.mu.Lock()
	d.server.bearers[token] = true
	d.server.mu.Unlock()
	pr, pw := io.Pipe()
	w := &answer{header: http.Header{}, body: pw, begun: make(chan struct{})}
	stop := context.AfterFunc(r.Context(), func() { _ = pr.CloseWithError(r.Context().Err()) })
	go func() {
		defer stop()
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusOK)
				_ = pw.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		d.handler.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		_ = pw.Close()
	}()
	<-w.begun
	return &http.Response{StatusCode: w.code, Header: w.header, Body: pr, ContentLength: -1, ProtoMajor: 1,
		ProtoMinor: 1, Request: r}, nil
}

// answer is the writing end of an answer.
type answer struct {
	header http.Header
	body   *io.PipeWriter
	begun  chan struct{}
	once   sync.Once
	code   int
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

func (a *answer) WriteHeader(code int) {
	a.once.Do(func() {
		a.code = code
		close(a.begun)
	})
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

func quiet(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
