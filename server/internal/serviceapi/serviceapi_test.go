package serviceapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	analyticsv1 "github.com/parley-chat/parley/gen/parley/analytics/v1"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	servicev1 "github.com/parley-chat/parley/gen/parley/service/v1"
	"github.com/parley-chat/parley/gen/parley/service/v1/servicev1connect"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/identity/revocation"
	"github.com/parley-chat/parley/server/identity/service"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/view"
)

// fixture is a server over a store in memory, with its gate.
type fixture struct {
	*testing.T
	url      string
	key      *auth.Key
	accounts *service.Service
	events   []event.Event
}

func install(t *testing.T) *fixture {
	t.Helper()
	i := &fixture{T: t}
	st := storetest.NewMemory(time.Now)
	var hub *delivery.Hub
	var gate *auth.Gate
	var err error
	i.key, err = auth.LoadKey(t.TempDir())
	i.must(err)
	chats, err := chat.New(t.Context(), chat.Config{Store: st, Clock: time.Now, Generation: "gen", Producer: "test",
		Committed: func(c chat.Commit) {
			i.events = append(i.events, c.Events...)
			hub.Deliver(delivery.Of(c.Events))
		}})
	i.must(err)
	reader := view.New(view.Config{Store: st, History: store.Line("gen"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	hub, err = delivery.New(delivery.Config{History: store.Line("gen"), Process: "p", Source: reader, Clock: time.Now,
		NewID:   chat.NewID,
		Revoked: func(p auth.Principal) bool { return gate.Refuses(p) }})
	i.must(err)
	revoked, err := revocation.New(revocation.Config{Store: st, Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
		Apply: func(r auth.Revocation) { gate.Apply(r) }})
	i.must(err)
	i.accounts, err = service.New(service.Config{Store: st, Clock: time.Now, Secret: make([]byte, 32), Revoker: revoked})
	i.must(err)
	a, err := api.New(api.Config{Chat: chats, View: reader, Hub: hub, Store: st, Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}, Permit: Permit,
		More: []api.Service{New(Config{Key: i.key, Clock: time.Now, Users: i.accounts, Revoker: revoked,
			EnsureUser: chats.EnsureUser}).Service()}})
	i.must(err)
	gate, err = auth.NewGate(auth.Config{Key: i.key, Clock: time.Now, EnsureUser: chats.EnsureUser, Refuse: a.Refuse,
		Services: i.accounts.Authenticate,
		OnRevoke: func(r auth.Revocation) {
			hub.EndRevoked(r.Covers)
		}})
	i.must(err)
	mux := http.NewServeMux()
	for path, h := range a.Handlers() {
		mux.Handle(path, gate.Wrap(h))
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- hub.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		<-ran
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	i.url = web.URL
	return i
}

func (i *fixture) must(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

// caller is clients with a token or a key, in the name of a user.
type caller struct {
	chats    chatv1connect.ChatServiceClient
	messages messagev1connect.MessageServiceClient
	delivery deliveryv1connect.DeliveryServiceClient
	backend  servicev1connect.BackendServiceClient
}

type headers struct{ token, user string }

// RoundTrip implements http.RoundTripper.
func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+h.token)
	if h.user != "" {
		r.Header.Set(auth.UserHeader, h.user)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (i *fixture) as(token, user string) caller {
	hc := &http.Client{Transport: headers{token, user}}
	return caller{
		chatv1connect.NewChatServiceClient(hc, i.url), messagev1connect.NewMessageServiceClient(hc, i.url),
		deliveryv1connect.NewDeliveryServiceClient(hc, i.url), servicev1connect.NewBackendServiceClient(hc, i.url),
	}
}

// account makes an account and returns a key of it.
func (i *fixture) account(id string, scopes ...string) string {
	i.Helper()
	_, err := i.accounts.Create(i.Context(), service.Account{ID: id, Scopes: scopes, CreatedBy: "ada"})
	i.must(err)
	_, text, err := i.accounts.CreateKey(i.Context(), id, "ada", time.Now().Add(time.Hour))
	i.must(err)
	return text
}

func code(err error) connect.Code {
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// A back end runs a chat for its users: it makes them and their chat, adds and removes
// members and sends. All of it has the user's name and the account's mark: in the change log,
// in frames, and in the events that Kafka gets.
func TestBackEndRunsAChat(t *testing.T) {
	i := install(t)
	key := i.account("shop", "users.write", "chats.write", "messages.send", "chats.read", "tokens.issue", "users:shop.")
	backend := i.as(key, "").backend
	for _, user := range []string{"shop.ann", "shop.bob", "shop.cid"} {
		_, err := backend.CreateUser(t.Context(), &servicev1.CreateUserRequest{UserId: user})
		i.must(err)
	}
	issued, err := backend.IssueUserToken(t.Context(), &servicev1.IssueUserTokenRequest{UserId: "shop.bob"})
	i.must(err)
	bob := i.as(issued.GetAccessToken(), "")
	stream, err := bob.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	i.must(err)
	defer stream.Close()

	ann := i.as(key, "shop.ann")
	made, err := ann.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP,
		Name: "Order 7", MemberIds: []string{"shop.bob"}})
	i.must(err)
	id := made.GetOverview().GetChat().GetChatId()
	if made.GetOverview().GetChat().GetCreatedBy() != "shop.ann" {
		t.Error(made)
	}
	_, err = ann.chats.AddMember(t.Context(), &chatv1.AddMemberRequest{ChatId: id, UserId: "shop.cid"})
	i.must(err)
	_, err = ann.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "it is on its way"})
	i.must(err)
	_, err = ann.chats.RemoveMember(t.Context(), &chatv1.RemoveMemberRequest{ChatId: id, UserId: "shop.cid"})
	i.must(err)
	_, err = bob.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id, Content: "thanks"})
	i.must(err)

	for n, e := range i.events {
		want := "shop"
		if m, ok := e.(*eventv1.MessagePersisted); ok && m.GetSenderId() == "shop.bob" {
			want = "" // a token that the account asked for is still the user's own
		}
		if got := e.GetMetadata().GetServiceId(); got != want {
			t.Errorf("event %d is marked %q, want %q: %v", n, got, want, e)
		}
	}
	if len(i.events) != 6 {
		t.Errorf("%d events", len(i.events))
	}
	changes, err := bob.messages.ListChanges(t.Context(), &messagev1.ListChangesRequest{ChatId: id})
	i.must(err)
	marks := map[string]int{}
	for _, c := range changes.GetChanges() {
		if m := c.GetMessage(); m != nil {
			marks[m.GetSenderId()+" "+m.GetServiceId()]++
		}
		if m := c.GetMembershipChange(); m != nil {
			marks[m.GetUserId()+" "+m.GetServiceId()]++
		}
	}
	for _, mark := range []string{"shop.ann shop", "shop.bob ", "shop.cid shop"} {
		if marks[mark] == 0 {
			t.Errorf("no change is marked %q: %v", mark, marks)
		}
	}
	for stream.Receive() {
		marked := false
		for _, f := range stream.Msg().GetFrames() {
			marked = marked || f.GetMessage().GetServiceId() == "shop"
		}
		if marked {
			break
		}
	}
	i.must(stream.Err())

	// The rights are the user's: the account is no member by itself, nor is another user of its.
	if _, err := i.as(key, "shop.cid").messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: id,
		Content: "x"}); code(err) != connect.CodePermissionDenied {
		t.Error(err)
	}
	// The session ends where and when the back end says, with its stream.
	_, err = backend.EndUserSession(t.Context(), &servicev1.EndUserSessionRequest{SessionId: issued.GetSessionId()})
	i.must(err)
	for stream.Receive() { // until the server ends it
	}
	if _, err := bob.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}); code(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// A scope opens what it is for, for the users whom the account may speak for, and nothing
// else; users do not reach what is for back ends.
func TestRequiredScopes(t *testing.T) {
	i := install(t)
	keys := map[string]string{
		"tokens": i.account("tokens", "tokens.issue", "users:shop."),
		"users":  i.account("users", "users.write", "users:shop."),
		"bot":    i.account("bot", "api", "users:shop."), "send": i.account("send", "messages.send", "users:shop."),
		"nobody": i.account("nobody", "tokens.issue", "users.write", "messages.send"),
	}
	user, err := i.key.Issue("shop.ann", time.Now(), time.Hour)
	i.must(err)
	keys["user"] = user
	_, err = i.as(user, "").chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}) // makes the user
	i.must(err)
	issue := func(c caller) error {
		_, err := c.backend.IssueUserToken(t.Context(), &servicev1.IssueUserTokenRequest{UserId: "shop.ann"})
		return err
	}
	create := func(c caller) error {
		_, err := c.backend.CreateUser(t.Context(), &servicev1.CreateUserRequest{UserId: "shop.new"})
		return err
	}
	list := func(c caller) error {
		_, err := c.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		return err
	}
	send := func(c caller) error { // to a chat that does not exist: who gets this far gets that error
		_, err := c.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{
			ChatId: "chat_01ARZ3NDEKTSV4RRFFQ69G5FAV", Content: "x"})
		if err != nil && strings.Contains(err.Error(), "not a member") {
			return nil
		}
		return err
	}
	for name, call := range map[string]struct {
		do      func(caller) error
		as      string
		allowed []string
	}{
		"issue":               {issue, "", []string{"tokens"}},
		"issue in a name":     {issue, "shop.ann", nil},
		"create":              {create, "", []string{"users"}},
		"list":                {list, "", []string{"bot", "user"}},
		"list in a name":      {list, "shop.ann", []string{"user"}}, // a user's header means nothing
		"send":                {send, "", []string{"bot", "send", "user"}},
		"send in a name":      {send, "shop.ann", []string{"send", "user"}},
		"send for a stranger": {send, "bob", []string{"user"}},
	} {
		for who, key := range keys {
			want := connect.CodePermissionDenied
			if slices.Contains(call.allowed, who) || who == "nobody" && name == "send" {
				want = 0
			}
			if err := call.do(i.as(key, call.as)); code(err) != want {
				t.Errorf("%s %s: %v", who, name, err)
			}
		}
	}
	for _, user := range []string{"bob", "service:bot", "service:tokens"} {
		_, err := i.as(keys["tokens"], "").backend.IssueUserToken(t.Context(), &servicev1.IssueUserTokenRequest{UserId: user})
		if code(err) != connect.CodePermissionDenied {
			t.Errorf("a token for %s: %v", user, err)
		}
	}
	for _, session := range []string{"ses_1", "ses_tokens2_x", "ses_bot_x"} {
		_, err := i.as(keys["tokens"], "").backend.EndUserSession(t.Context(),
			&servicev1.EndUserSessionRequest{SessionId: session})
		_, goOn := i.as(keys["tokens"], "").backend.IssueUserToken(t.Context(),
			&servicev1.IssueUserTokenRequest{UserId: "shop.ann", SessionId: session})
		if code(err) != connect.CodePermissionDenied || code(goOn) != connect.CodePermissionDenied {
			t.Errorf("session %s of somebody else: %v, %v", session, err, goOn)
		}
	}
	if err := list(i.as(keys["bot"]+"0", "")); code(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// A key that is revoked is refused at once, with what it opened; a disabled account's tokens
// are, too.
func TestRevokedKeysAndAccounts(t *testing.T) { // S-13
	i := install(t)
	key := i.account("shop", "api", "tokens.issue", "users:shop.")
	bot := i.as(key, "")
	issued, err := bot.backend.IssueUserToken(t.Context(), &servicev1.IssueUserTokenRequest{UserId: "shop.ann",
		Ttl: durationpb.New(time.Hour)})
	i.must(err)
	if left := time.Until(issued.GetExpiresAt().AsTime()); left > time.Hour || left < 59*time.Minute {
		t.Error(left)
	}
	ann := i.as(issued.GetAccessToken(), "")
	list := func(c caller) error {
		_, err := c.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
		return err
	}
	_, second, err := i.accounts.CreateKey(t.Context(), "shop", "ada", time.Time{})
	i.must(err)
	byOther, err := i.as(second, "").backend.IssueUserToken(t.Context(),
		&servicev1.IssueUserTokenRequest{UserId: "shop.cid"})
	i.must(err)
	cid := i.as(byOther.GetAccessToken(), "")
	i.must(errors.Join(list(bot), list(ann), list(cid)))
	annStream, err := ann.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	i.must(err)
	defer annStream.Close()
	if !annStream.Receive() {
		t.Fatal(annStream.Err())
	}
	stream, err := bot.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	i.must(err)
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	i.must(i.accounts.RevokeKey(t.Context(), "shop", strings.Split(key, "_")[3]))
	for stream.Receive() || annStream.Receive() { // until the server ends both
	}
	if err := list(bot); code(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
	if err := list(ann); code(err) != connect.CodeUnauthenticated { // who stole the key may have it
		t.Error(err)
	}
	i.must(list(cid)) // a key is not the account
	_, err = i.accounts.Disable(t.Context(), "shop")
	i.must(err)
	if err := list(cid); code(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// Every procedure that users reach is known here: it has a scope, or service accounts call it
// as their own user only.
func TestEveryProcedureIsDecided(t *testing.T) {
	own := map[string]bool{}
	for _, p := range []string{"ChatService/MuteChat", "ChatService/UnmuteChat", "ChatService/ArchiveChat",
		"ChatService/UnarchiveChat"} {
		own["/parley.chat.v1."+p] = true
	}
	for _, p := range []string{"Sync", "Subscribe", "Ack", "Extend"} {
		own["/parley.delivery.v1.DeliveryService/"+p] = true
	}
	for _, p := range []string{"GetSettings", "UpdateSettings", "BlockUser", "UnblockUser", "ListBlocked", "InviteToChat",
		"ListInvitations", "AcceptInvitation", "DeclineInvitation", "LookupByHandle", "LookupByIdentifier", "DeleteAccount",
		"ExportData"} {
		own["/parley.user.v1.UserService/"+p] = true
	}
	own["/parley.message.v1.MessageService/MarkRead"] = true
	own["/parley.analytics.v1.AnalyticsService/Record"] = true
	own["/parley.analytics.v1.AnalyticsService/RecordBatch"] = true
	seen := map[string]bool{}
	for _, f := range []protoreflect.FileDescriptor{chatv1.File_parley_chat_v1_chat_service_proto,
		messagev1.File_parley_message_v1_message_service_proto, deliveryv1.File_parley_delivery_v1_delivery_service_proto,
		analyticsv1.File_parley_analytics_v1_analytics_service_proto, topicv1.File_parley_topic_v1_topic_service_proto,
		userv1.File_parley_user_v1_user_service_proto, servicev1.File_parley_service_v1_backend_service_proto} {
		protoregistry.GlobalFiles.RangeFilesByPackage(f.Package(), func(f protoreflect.FileDescriptor) bool {
			for s := range f.Services().Len() {
				for m := range f.Services().Get(s).Methods().Len() {
					method := f.Services().Get(s).Methods().Get(m)
					seen["/"+string(method.Parent().FullName())+"/"+string(method.Name())] = true
				}
			}
			return true
		})
	}
	bot := auth.Principal{Kind: auth.KindService, Service: "bot", UserID: "service:bot", Scopes: "api topics"}
	named := bot
	named.UserID, named.Scopes = "ann", "api chats.read chats.write messages.send tokens.issue topics users.write"
	for p := range seen {
		_, scoped := scopes[p]
		topic := strings.HasPrefix(p, topics)
		if scoped == (own[p] || topic) {
			t.Errorf("%s has a scope: %v; is for own users: %v", p, scoped, own[p] || topic)
		}
		if forBackEnds := strings.HasPrefix(p, backEnds); (Permit(bot, p) == nil) == forBackEnds ||
			(Permit(named, p) == nil) != (scoped && !forBackEnds) ||
			(Permit(auth.Principal{UserID: "ann"}, p) == nil) == forBackEnds {
			t.Errorf("%s: %v, %v", p, Permit(bot, p), Permit(named, p))
		}
	}
	for p := range own {
		if !seen[p] {
			t.Errorf("there is no %s", p)
		}
	}
	for p := range scopes {
		if !seen[p] {
			t.Errorf("there is no %s", p)
		}
	}
}
