package api_test

import (
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Every RPC that is implemented, through every protocol.
func TestRPCs(t *testing.T) {
	for name, transport := range map[string]struct {
		h2   bool
		opts []connect.ClientOption
	}{
		"Connect over HTTP/1.1":      {},
		"Connect over h2c":           {h2: true},
		"Connect with GET":           {opts: []connect.ClientOption{connect.WithHTTPGet()}},
		"Connect in JSON":            {opts: []connect.ClientOption{connect.WithProtoJSON()}},
		"Connect, requests gzipped":  {opts: []connect.ClientOption{connect.WithSendGzip()}},
		"gRPC over h2c":              {h2: true, opts: []connect.ClientOption{connect.WithGRPC()}},
		"gRPC over h2c in JSON":      {h2: true, opts: []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
		"gRPC-Web over HTTP/1.1":     {opts: []connect.ClientOption{connect.WithGRPCWeb()}},
		"gRPC-Web over h2c, gzipped": {h2: true, opts: []connect.ClientOption{connect.WithGRPCWeb(), connect.WithSendGzip()}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			hc := http.DefaultClient
			if transport.h2 {
				hc = h2c(t)
			}
			exercise(s, s.clients(hc, "ann", transport.opts...), s.clients(hc, "bob", transport.opts...))
		})
	}
}

func exercise(s *server, ann, bob clients) {
	t, ctx := s.T, s.Context()
	ctx, info := connect.NewClientContext(ctx)
	replayed := func() string { return info.ResponseHeader().Get("Idempotency-Replayed") }

	// Chats.
	group := &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "friends", MemberIds: []string{"bob"},
		RequestId: "r1"}
	created, err := ann.chat.CreateChat(ctx, group)
	s.must(err)
	testkit.Equal(t, "replayed", replayed(), "")
	id := created.GetOverview().GetChat().GetChatId()
	again, err := ann.chat.CreateChat(ctx, group)
	s.must(err)
	testkit.Equal(t, "replayed", replayed(), "true")
	testkit.Equal(t, "same chat", again.GetOverview().GetChat().GetChatId(), id)
	group.Name = "others"
	_, err = ann.chat.CreateChat(ctx, group)
	wantCode(t, "other content", err, connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_REUSED")

	direct := &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, MemberIds: []string{"bob"},
		History: chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED}
	first, err := ann.chat.CreateChat(ctx, direct)
	s.must(err)
	testkit.Equal(t, "history", first.GetOverview().GetChat().GetHistory(), chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED)
	direct.MemberIds = []string{"ann"}
	second, err := bob.chat.CreateChat(ctx, direct)
	s.must(err)
	testkit.Equal(t, "the one direct chat", second.GetOverview().GetChat().GetChatId(),
		first.GetOverview().GetChat().GetChatId())
	testkit.Equal(t, "replayed", replayed(), "true")

	got, err := bob.chat.GetChat(ctx, &chatv1.GetChatRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "name", got.GetOverview().GetChat().GetName(), "friends")
	list, err := bob.chat.ListChats(ctx, &chatv1.ListChatsRequest{PageSize: 1})
	s.must(err)
	list, err = bob.chat.ListChats(ctx, &chatv1.ListChatsRequest{PageToken: list.GetNextPageToken()})
	s.must(err)
	testkit.Equal(t, "chats on the second page", len(list.GetOverviews()), 1)
	members, err := bob.chat.ListMembers(ctx, &chatv1.ListMembersRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "members", len(members.GetMembers()), 2)
	testkit.Equal(t, "owner", members.GetMembers()[0].GetRole(), chatv1.MemberRole_MEMBER_ROLE_OWNER)

	// Messages.
	send := &messagev1.SendMessageRequest{ChatId: id, Content: strings.Repeat("hello ", 400),
		ClientMessageId: uuid.NewString()}
	sent, err := ann.message.SendMessage(ctx, send)
	s.must(err)
	testkit.Equal(t, "id", sent.GetClientMessageId(), send.GetClientMessageId())
	resent, err := ann.message.SendMessage(ctx, send)
	s.must(err)
	testkit.Equal(t, "replayed", replayed()+resent.GetMessageId()+resent.GetCreatedAt().String(),
		"true"+sent.GetMessageId()+sent.GetCreatedAt().String())
	send.Content = "other"
	_, err = ann.message.SendMessage(ctx, send)
	wantCode(t, "other content", err, connect.CodeInvalidArgument, "IDEMPOTENCY_KEY_REUSED")
	messages, err := bob.message.ListMessages(ctx, &messagev1.ListMessagesRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "content", messages.GetMessages()[0].GetContent(), strings.Repeat("hello ", 400))
	testkit.Equal(t, "type", messages.GetMessages()[0].GetContentType(), messagev1.ContentType_CONTENT_TYPE_TEXT)
	changes, err := bob.message.ListChanges(ctx, &messagev1.ListChangesRequest{ChatId: id})
	s.must(err)
	testkit.Equal(t, "changes", len(changes.GetChanges()), 3)
	read, err := bob.message.MarkRead(ctx, &messagev1.MarkReadRequest{ChatId: id, Sequence: 5})
	s.must(err)
	testkit.Equal(t, "read, unread", []int64{read.GetState().GetReadSequence(), read.GetState().GetUnreadCount()},
		[]int64{1, 0})

	// Delivery.
	sync, err := bob.delivery.Sync(ctx, &deliveryv1.SyncRequest{})
	s.must(err)
	testkit.Equal(t, "chats", len(sync.GetOverviews()), 2)
	_, err = ann.delivery.Sync(ctx, &deliveryv1.SyncRequest{Token: sync.GetToken()})
	wantCode(t, "another user's token", err, connect.CodeInvalidArgument, "INVALID_TOKEN")
	_, err = bob.delivery.Sync(ctx, &deliveryv1.SyncRequest{Token: sync.GetToken()})
	s.must(err)
	_, err = bob.delivery.Sync(ctx, &deliveryv1.SyncRequest{PageToken: "AAAA"})
	wantCode(t, "page token", err, connect.CodeInvalidArgument, "INVALID_PAGE_TOKEN")
	_, err = bob.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: "p.str_1", Position: 1})
	wantCode(t, "ack", err, connect.CodeNotFound, "STREAM_GONE")
	_, err = bob.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: "p.str_1"})
	wantCode(t, "extend", err, connect.CodeNotFound, "STREAM_GONE")

	stream, err := bob.delivery.Subscribe(s.Context(), &deliveryv1.SubscribeRequest{Token: sync.GetToken()})
	s.must(err)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	hello := stream.Msg().GetFrames()[0].GetHello()
	testkit.Equal(t, "generation", hello.GetGeneration(), "gen")
	_, err = bob.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: 1})
	s.must(err)
	_, err = bob.delivery.Extend(ctx, &deliveryv1.ExtendRequest{StreamId: hello.GetStreamId()})
	s.must(err)
	_, err = bob.delivery.Ack(ctx, &deliveryv1.AckRequest{StreamId: hello.GetStreamId(), Position: 1 << 40})
	wantCode(t, "ack of what was not sent", err, connect.CodeOutOfRange, "POSITION_NOT_SENT")
	s.must(stream.Close())

	for reason, req := range map[string]*deliveryv1.SubscribeRequest{
		"INVALID_TOKEN":    {Token: "AAAA"},
		"INVALID_ARGUMENT": {KnownChats: []*deliveryv1.KnownChat{{ChatId: "chat_1"}}},
	} {
		stream, err := bob.delivery.Subscribe(s.Context(), req)
		s.must(err)
		if stream.Receive() {
			t.Fatalf("a stream in spite of %s", reason)
		}
		wantCode(t, "subscribe", stream.Err(), connect.CodeInvalidArgument, reason)
		s.must(stream.Close())
	}
}

// What curl does, without any header of Connect.
func TestPlainJSON(t *testing.T) {
	s := newServer(t)
	a := s.post("/parley.chat.v1.ChatService/CreateChat",
		`{"type":"CHAT_TYPE_GROUP","name":"g","member_ids":["bob"],"nobodyKnows":{"this":[1]}}`)
	testkit.Equal(t, "unknown fields are skipped", a.status, http.StatusOK)
	id := s.group("bob")
	a = s.post("/parley.message.v1.MessageService/SendMessage",
		`{"chatId":"`+id+`","content":"hi","clientMessageId":"3b241101-e2bb-4255-8caf-4136c566a962"}`)
	testkit.Equal(t, "send", a.status, http.StatusOK)
	a = s.post("/parley.message.v1.MessageService/SendMessage",
		`{"chatId":"`+id+`","content":"hi","clientMessageId":"3b241101-e2bb-4255-8caf-4136c566a962"}`)
	testkit.Equal(t, "send again", a.header.Get("Idempotency-Replayed"), "true")
	a = s.post("/parley.message.v1.MessageService/ListMessages", `{"chatId":"`+id+`","afterSequence":"0"}`)
	if !strings.Contains(string(a.body), `"sequence":"1"`) && !strings.Contains(string(a.body), `"sequence": "1"`) {
		t.Fatalf("int64 is a string in JSON: %s", a.body)
	}
}
