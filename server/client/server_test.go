package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// server has the handlers that a client needs, over a store in memory. A bearer
// token is user/number; only the newest number of a user is good.
type server struct {
	chatv1connect.UnimplementedChatServiceHandler
	messagev1connect.UnimplementedMessageServiceHandler
	deliveryv1connect.UnimplementedDeliveryServiceHandler
	*testing.T
	web   *httptest.Server
	hub   *delivery.Hub
	chats *chat.Service
	view  *view.Reader

	mu     sync.Mutex
	number map[string]int
	down   bool
}

type userKey struct{}

func userOf(ctx context.Context) string { u, _ := ctx.Value(userKey{}).(string); return u }

func newServer(t *testing.T) *server {
	t.Helper()
	s, stop, err := serve(t.Context())
	testkit.Must(t, err)
	t.Cleanup(stop)
	s.T = t
	return s
}

// serve starts a server with the users ann and bob.
func serve(ctx context.Context) (s *server, stop func(), err error) {
	s = &server{number: map[string]int{}}
	st := storetest.NewMemory(time.Now)
	s.view = view.New(view.Config{Store: st, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	s.chats, err = chat.New(ctx, chat.Config{
		Store: st, Clock: time.Now, Generation: "g", Producer: "p",
		Committed: func(c chat.Commit) { s.hub.Deliver(delivery.Of(c.Events)) },
		Receipt:   func(r table.UserChat, h table.Head) { s.hub.Receipt(r.UserID, r.ChatID, s.view.State(h, r)) },
	})
	if err != nil {
		return nil, nil, err
	}
	s.hub, err = delivery.New(delivery.Config{
		History: store.Line("g"),
		Process: "p", Source: s.view, Clock: time.Now, NewID: chat.NewID, Delivered: s.chats.Delivered,
		GapWait: time.Millisecond,
	})
	if err != nil {
		return nil, nil, err
	}
	for _, u := range []string{"ann", "bob"} {
		if err := s.chats.EnsureUser(ctx, u); err != nil {
			return nil, nil, err
		}
	}
	mux := http.NewServeMux()
	mux.Handle(chatv1connect.NewChatServiceHandler(s))
	mux.Handle(messagev1connect.NewMessageServiceHandler(s))
	mux.Handle(deliveryv1connect.NewDeliveryServiceHandler(s))
	refuse := connect.NewErrorWriter()
	s.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		user, number, _ := strings.Cut(token, "/")
		s.mu.Lock()
		good, down := fmt.Sprint(s.number[user]) == number, s.down
		s.mu.Unlock()
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case !good:
			_ = refuse.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errors.New("token")))
		default:
			mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
		}
	}))
	running, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.hub.Run(running, func() {}) }()
	return s, func() { end(); <-done; s.web.Close() }, nil
}

func (s *server) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *server) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// expire makes the tokens of a user worthless.
func (s *server) expire(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number[user]++
}

// mapped gives an error the code and reason that the API gives it.
func mapped(err error) error {
	switch {
	case errors.Is(err, chat.ErrNotAMember):
		out := connect.NewError(connect.CodePermissionDenied, err)
		if d, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "NOT_A_MEMBER", Domain: "parley"}); err == nil {
			out.AddDetail(d)
		}
		return out
	case errors.Is(err, delivery.ErrSessionRevoked):
		return connect.NewError(connect.CodeUnauthenticated, err)
	}
	return err
}

func (s *server) CreateChat(ctx context.Context, r *chatv1.CreateChatRequest) (*chatv1.CreateChatResponse, error) {
	var c chat.Created
	var err error
	if members := r.GetMemberIds(); r.GetType() == chatv1.ChatType_CHAT_TYPE_DIRECT {
		c, err = s.chats.CreateDirect(ctx, chat.CreateDirect{Caller: userOf(ctx), Other: members[0]})
	} else {
		c, err = s.chats.CreateGroup(ctx, chat.CreateGroup{Caller: userOf(ctx), Name: r.GetName(), Members: members})
	}
	if err != nil {
		return nil, mapped(err)
	}
	ov, err := s.view.Overview(ctx, userOf(ctx), c.ChatID)
	return &chatv1.CreateChatResponse{Overview: ov}, mapped(err)
}

func (s *server) GetChat(ctx context.Context, r *chatv1.GetChatRequest) (*chatv1.GetChatResponse, error) {
	ov, err := s.view.Overview(ctx, userOf(ctx), r.GetChatId())
	return &chatv1.GetChatResponse{Overview: ov}, mapped(err)
}

func (s *server) ListMembers(ctx context.Context, r *chatv1.ListMembersRequest) (*chatv1.ListMembersResponse, error) {
	res, err := s.view.Members(ctx, userOf(ctx), r.GetChatId(), int(r.GetPageSize()), r.GetPageToken())
	return res, mapped(err)
}

func (s *server) SendMessage(
	ctx context.Context, r *messagev1.SendMessageRequest,
) (*messagev1.SendMessageResponse, error) {
	m, err := s.chats.Send(ctx, chat.Send{
		Caller: userOf(ctx), ChatID: r.GetChatId(), ClientMessageID: r.GetClientMessageId(), Content: r.GetContent(),
		ContentType: int64(r.GetContentType()),
	})
	return &messagev1.SendMessageResponse{
		MessageId: m.MessageID, Sequence: m.Sequence, Version: m.Version,
		CreatedAt: timestamppb.New(time.UnixMilli(m.CreatedAt)), ClientMessageId: m.ClientMessageID,
	}, mapped(err)
}

func (s *server) ListMessages(
	ctx context.Context, r *messagev1.ListMessagesRequest,
) (*messagev1.ListMessagesResponse, error) {
	res, err := s.view.Messages(ctx, userOf(ctx), r)
	return res, mapped(err)
}

func (s *server) ListChanges(
	ctx context.Context, r *messagev1.ListChangesRequest,
) (*messagev1.ListChangesResponse, error) {
	res, err := s.view.Changes(ctx, userOf(ctx), r)
	return res, mapped(err)
}

func (s *server) MarkRead(ctx context.Context, r *messagev1.MarkReadRequest) (*messagev1.MarkReadResponse, error) {
	out, err := s.chats.MarkRead(ctx, chat.MarkRead{Caller: userOf(ctx), ChatID: r.GetChatId(), Sequence: r.GetSequence()})
	if err != nil {
		return nil, mapped(err)
	}
	return &messagev1.MarkReadResponse{State: s.view.State(out.Head, out.Row)}, nil
}

func (s *server) Sync(ctx context.Context, r *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	res, err := s.view.Sync(ctx, userOf(ctx), r)
	return res, mapped(err)
}

func (s *server) Ack(ctx context.Context, r *deliveryv1.AckRequest) (*deliveryv1.AckResponse, error) {
	res := &deliveryv1.AckResponse{}
	for _, k := range r.GetReadMarks() {
		out, err := s.chats.MarkRead(ctx,
			chat.MarkRead{Caller: userOf(ctx), ChatID: k.GetChatId(), Sequence: k.GetSequence()})
		if err != nil {
			return nil, mapped(err)
		}
		res.ReadOutcomes = append(res.ReadOutcomes, &deliveryv1.ReadOutcome{State: s.view.State(out.Head, out.Row)})
	}
	st, err := s.hub.Stream(userOf(ctx), r.GetStreamId())
	if err == nil {
		err = st.Ack(r.GetPosition())
	}
	return res, err
}

func (s *server) Subscribe(
	ctx context.Context, r *deliveryv1.SubscribeRequest, out *connect.ServerStream[deliveryv1.SubscribeResponse],
) error {
	st, err := s.hub.Open(ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: userOf(ctx), SessionID: userOf(ctx), ExpiresAt: time.Now().Add(time.Hour)},
		Token:     r.GetToken(), Known: r.GetKnownChats(),
	})
	if err != nil {
		return err
	}
	defer s.hub.Close(st)
	for done := false; ; {
		first, frames, ended := st.Take(10)
		res := &deliveryv1.SubscribeResponse{FirstPosition: first}
		for _, f := range frames {
			res.Frames = append(res.Frames, f.Proto())
		}
		if len(frames) > 0 {
			if err := out.Send(res); err != nil {
				return err
			}
		}
		switch {
		case ended:
			return mapped(delivery.ErrSessionRevoked)
		case !done:
			if done, err = st.Step(ctx); err != nil {
				return err
			}
		default:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-st.Ready():
			}
		}
	}
}
