package userapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/userapi"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is an identifier of ann that no answer to others may have.
const canary = "ann.canary@example.com"

// server is the service over a store in memory, behind a stand-in for the gate that takes
// the user's name from a header.
type server struct {
	*testing.T
	url     string
	web     *httptest.Server
	chats   *chat.Service
	people  *people.Service
	mu      sync.Mutex
	deleted []string
	age     time.Duration // of tokens
}

type identifiers struct{}

// Lookup implements people.Identifiers.
func (identifiers) Lookup(_ context.Context, identifier string) (string, error) {
	return map[string]string{canary: "ann"}[identifier], nil
}

// OfUser implements people.Identifiers.
func (identifiers) OfUser(_ context.Context, user string) ([]string, error) {
	return map[string][]string{"ann": {canary}}[user], nil
}

type hub struct{}

// ProfileChanged implements people.Hub.
func (hub) ProfileChanged(string, int64, []string) {}

func newServer(t *testing.T, change ...func(*people.Config)) *server {
	t.Helper()
	s := &server{T: t}
	st := storetest.NewMemory(time.Now)
	s.chats = testkit.Value(chat.New(t.Context(), chat.Config{Store: st, Clock: time.Now, Generation: "g",
		Producer: "p"}))(t)
	c := people.Config{Store: st, Clock: time.Now, NewID: chat.NewID, Chats: s.chats, Hub: hub{},
		Identifiers: identifiers{}}
	for _, f := range change {
		f(&c)
	}
	s.people = people.New(c)
	for _, u := range []string{"ann", "bob", "cid"} {
		testkit.Must(t, s.chats.EnsureUser(t.Context(), u))
	}
	service := userapi.New(userapi.Config{People: s.people, Deleted: func(_ context.Context, p auth.Principal) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deleted = append(s.deleted, p.UserID+" "+p.SessionID)
	}}).Service()
	a := testkit.Value(api.New(api.Config{Store: st, Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}, More: []api.Service{service}}))(t)
	mux := http.NewServeMux()
	for path, h := range a.Handlers() {
		mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			p := auth.Principal{UserID: r.Header.Get("X-User"), SessionID: "ses", IssuedAt: time.Now().Add(-s.age),
				ExpiresAt: time.Now().Add(time.Hour)}
			s.mu.Unlock()
			h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), p)))
		}))
	}
	s.web = httptest.NewServer(mux)
	t.Cleanup(s.web.Close)
	s.url = s.web.URL
	return s
}

// RoundTrip adds a user's name.
func (u named) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("X-User", u.user)
	return u.next.RoundTrip(r)
}

type named struct {
	user string
	next http.RoundTripper
}

func (s *server) as(user string) userv1connect.UserServiceClient {
	hc := &http.Client{Transport: named{user, s.web.Client().Transport}}
	return userv1connect.NewUserServiceClient(hc, s.url)
}

// post calls a procedure with JSON and returns the answer.
func (s *server) post(user, procedure, body string) (status int, answer string) {
	s.Helper()
	req := testkit.Value(http.NewRequestWithContext(s.Context(), http.MethodPost,
		s.url+"/"+userv1connect.UserServiceName+"/"+procedure, strings.NewReader(body)))(s)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User", user)
	res := testkit.Value(s.web.Client().Do(req))(s)
	defer res.Body.Close()
	return res.StatusCode, string(testkit.Value(io.ReadAll(res.Body))(s))
}

// reason is what an error says to programs.
func reason(err error) string {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return fmt.Sprint(err)
	}
	for _, d := range failed.Details() {
		if v, err := d.Value(); err == nil {
			if info, ok := v.(*errdetails.ErrorInfo); ok {
				if rule := info.GetMetadata()["rule"]; rule != "" {
					return failed.Code().String() + " " + rule
				}
				return failed.Code().String() + " " + info.GetReason()
			}
		}
	}
	return failed.Code().String()
}

// Fields that the server owns are not the caller's to set, and answers to others hold no
// identifier of anybody (S-18).
func TestSec_S_18_Properties(t *testing.T) {
	s := newServer(t)
	_, answer := s.post("ann", "UpdateProfile", `{"displayName":"Ann","userId":"bob","user_id":"bob","version":"99",
		"updatedAt":"2001-01-01T00:00:00Z","deleted":true,"handle":"root","profile":{"version":"7"}}`)
	for _, want := range []string{`"userId":"ann"`, `"version":"1"`, `"deleted":false`, `"handle":""`} {
		if !strings.Contains(strings.ReplaceAll(answer, ": ", ":"), want) {
			t.Errorf("no %s in %s", want, answer)
		}
	}
	if p := testkit.Value(s.people.Get(t.Context(), "bob"))(t); p.Version != 0 {
		t.Errorf("somebody else's profile is %+v", p)
	}
	s.post("ann", "UpdateSettings", `{"findableByIdentifier":true}`)
	for _, call := range [][2]string{
		{"GetProfile", `{"userId":"ann"}`}, {"BatchGetProfiles", `{"knownProfiles":[{"userId":"ann"}]}`},
		{"LookupByIdentifier", `{"identifier":"` + canary + `"}`}, {"BlockUser", `{"userId":"ann"}`}, {"ListBlocked", `{}`},
	} {
		procedure := call[0]
		status, answer := s.post("bob", procedure, call[1])
		if status != http.StatusOK || strings.Contains(answer, "canary") || procedure != "BlockUser" &&
			!strings.Contains(answer, "ann") {
			t.Errorf("%s answers %d %s", procedure, status, answer)
		}
	}
}

// Each error of the service has a stable reason.
func TestReasons(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	ann, bob := s.as("ann"), s.as("bob")
	group := testkit.Value(s.chats.CreateGroup(ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}}))(t)
	testkit.Value(bob.SetHandle(ctx, &userv1.SetHandleRequest{Handle: "Tea.Time"}))(t)
	handle := func(user, handle string) error {
		_, err := s.as(user).SetHandle(ctx, &userv1.SetHandleRequest{Handle: handle})
		return err
	}
	for want, call := range map[string]func() error{
		"not_found USER_NOT_FOUND": func() error {
			_, err := ann.GetProfile(ctx, &userv1.GetProfileRequest{UserId: "nobody"})
			return err
		},
		"aborted VERSION_MISMATCH": func() error {
			_, err := ann.UpdateProfile(ctx, &userv1.UpdateProfileRequest{About: proto.String("x"), Etag: "v7"})
			return err
		},
		"already_exists HANDLE_TAKEN":      func() error { return handle("ann", "tea.TIME") },
		"invalid_argument HANDLE_RESERVED": func() error { return handle("ann", "admin") },
		"resource_exhausted RATE_LIMITED":  func() error { return handle("bob", "coffee") },
		"invalid_argument INVALID_ARGUMENT": func() error {
			_, err := ann.BlockUser(ctx, &userv1.BlockUserRequest{UserId: "ann"})
			return err
		},
		"not_found INVITATION_NOT_FOUND": func() error {
			_, err := bob.AcceptInvitation(ctx, &userv1.AcceptInvitationRequest{ChatId: group.ChatID})
			return err
		},
		"permission_denied MEMBERS_CANNOT_ADD": func() error {
			_, err := bob.InviteToChat(ctx, &userv1.InviteToChatRequest{ChatId: group.ChatID, UserId: "cid"})
			return err
		},
		"invalid_argument INVALID_PAGE_TOKEN": func() error {
			_, err := ann.ListBlocked(ctx, &userv1.ListBlockedRequest{PageToken: "!"})
			return err
		},
	} {
		if got := reason(call()); got != want {
			t.Errorf("%s, expected %s", got, want)
		}
	}
	_, err := ann.DeleteAccount(ctx, &userv1.DeleteAccountRequest{ConfirmUserId: "bob"})
	testkit.Equal(t, "a deletion of somebody else", reason(err), "invalid_argument INVALID_ARGUMENT")
	_, err = newServer(t, func(c *people.Config) { c.Identifiers = nil }).as("ann").LookupByIdentifier(ctx,
		&userv1.LookupByIdentifierRequest{Identifier: canary})
	testkit.Equal(t, "without identifiers", reason(err), "failed_precondition NO_IDENTIFIERS")
}

// What people show is text that looks like what it is.
func TestText(t *testing.T) {
	s := newServer(t)
	update := func(req *userv1.UpdateProfileRequest, want bool) {
		t.Helper()
		_, err := s.as("ann").UpdateProfile(t.Context(), req)
		if (err == nil) != want || err != nil && connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
	}
	for name, want := range map[string]bool{"Ann": true, "": true, "Zoë 🍵": true, " ": false, "a\u202eb": false,
		"a\nb": false, "\u200b": false, strings.Repeat("ä", 64): true, strings.Repeat("ä", 65): false} {
		update(&userv1.UpdateProfileRequest{DisplayName: &name}, want)
	}
	update(&userv1.UpdateProfileRequest{About: proto.String("two\nlines")}, true)
	update(&userv1.UpdateProfileRequest{About: proto.String("a\x07b")}, false)
	for avatar, want := range map[string]bool{"https://example.com/a.png?size=2": true, "": true,
		"avatars/ann-1.png": true, "java script": false, "javascript:alert(1)": false, "data:text/html,x": false,
		"http://example.com/a.png": false,
		"//example.com/a.png":      false, "https:///a.png": false, "https:a.png": false, "../a.png": false, "a//b": false,
		"https://ann:pw@example.com/a.png": false, "https://a b/": false, "a\\b": false, "a?b": false} {
		update(&userv1.UpdateProfileRequest{Avatar: &avatar}, want)
	}
	for _, bad := range []string{"ab", "1abc", "a b c", "näh", strings.Repeat("a", 33), "a#bc"} {
		_, err := s.as("ann").SetHandle(t.Context(), &userv1.SetHandleRequest{Handle: bad})
		testkit.Equal(t, bad, connect.CodeOf(err), connect.CodeInvalidArgument)
	}
}

// A list of two pages, and settings that are set and read.
func TestListsAndSettings(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	ann := s.as("ann")
	for _, u := range []string{"cid", "bob"} {
		testkit.Value(ann.BlockUser(ctx, &userv1.BlockUserRequest{UserId: u}))(t)
	}
	first := testkit.Value(ann.ListBlocked(ctx, &userv1.ListBlockedRequest{PageSize: 1}))(t)
	next := testkit.Value(ann.ListBlocked(ctx, &userv1.ListBlockedRequest{PageSize: 1,
		PageToken: first.GetNextPageToken()}))(t)
	if b := first.GetBlockedUsers(); len(b) != 1 || b[0].GetUserId() != "bob" {
		t.Errorf("%v", first)
	}
	if b := next.GetBlockedUsers(); len(b) != 1 || b[0].GetUserId() != "cid" || next.GetNextPageToken() != "" {
		t.Errorf("%v, then %v", first, next)
	}
	for _, want := range []userv1.WhoMayAdd{userv1.WhoMayAdd_WHO_MAY_ADD_NOBODY,
		userv1.WhoMayAdd_WHO_MAY_ADD_SHARED_CHAT, userv1.WhoMayAdd_WHO_MAY_ADD_EVERYBODY} {
		testkit.Value(ann.UpdateSettings(ctx, &userv1.UpdateSettingsRequest{WhoMayAdd: &want}))(t)
		if got := testkit.Value(ann.GetSettings(ctx, &userv1.GetSettingsRequest{}))(t); got.GetSettings().GetWhoMayAdd() !=
			want {
			t.Errorf("%v, expected %v", got, want)
		}
	}
}

// The stream of an export ends with its end, resumes after a cursor, and is shown to nobody
// else.
func TestExportStream(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	testkit.Value(s.as("ann").UpdateProfile(ctx, &userv1.UpdateProfileRequest{DisplayName: proto.String("Ann")}))(t)
	group := testkit.Value(s.chats.CreateGroup(ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}}))(t)
	for i, user := range []string{"ann", "bob", "ann"} {
		testkit.Value(s.chats.Send(ctx, chat.Send{Caller: user, ChatID: group.ChatID, Content: fmt.Sprint("text ", i)}))(t)
	}
	read := func(user, cursor string) (kinds, cursors []string) {
		t.Helper()
		stream := testkit.Value(s.as(user).ExportData(ctx, &userv1.ExportDataRequest{Cursor: cursor}))(t)
		for stream.Receive() {
			kinds = append(kinds, fmt.Sprintf("%T", stream.Msg().GetRecord())[len("*userv1.ExportDataResponse_"):])
			cursors = append(cursors, stream.Msg().GetCursor())
		}
		testkit.Must(t, stream.Err())
		testkit.Must(t, stream.Close())
		return kinds, cursors
	}
	all, cursors := read("ann", "")
	testkit.Equal(t, "ann's data", fmt.Sprint(all), "[Profile Settings Identifier Chat Message Message End]")
	rest, _ := read("ann", cursors[4])
	testkit.Equal(t, "the rest", fmt.Sprint(rest), "[Message End]")
	others, _ := read("bob", "")
	testkit.Equal(t, "bob's data", fmt.Sprint(others), "[Profile Settings Chat Message End]")
}

// Who has deleted the account is ended here at once. That takes a sign-in that is not long ago.
func TestDeletionEndsTheSession(t *testing.T) {
	s := newServer(t)
	age := func(d time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.age = d
	}
	age(11 * time.Minute)
	_, err := s.as("ann").DeleteAccount(t.Context(), &userv1.DeleteAccountRequest{ConfirmUserId: "ann"})
	testkit.Equal(t, "long after signing in", reason(err), "failed_precondition RECENT_SIGN_IN_REQUIRED")
	if p := testkit.Value(s.people.Get(t.Context(), "ann"))(t); p.Deleted {
		t.Error("the account is deleted")
	}
	age(9 * time.Minute)
	testkit.Value(s.as("ann").DeleteAccount(t.Context(), &userv1.DeleteAccountRequest{ConfirmUserId: "ann"}))(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.deleted, []string{"ann ses"}) {
		t.Errorf("ended: %v", s.deleted)
	}
}
