package app_test

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// The lines of the page on people are run as they stand there.
func TestPeoplePage(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	page := string(testkit.Value(os.ReadFile("../../docs/people.md"))(t))
	script := "set -eo pipefail\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		script += block[1]
	}
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	script = strings.NewReplacer("127.0.0.1:8080", p.addr, "go run ./server",
		binary(t)+" --data-dir "+dir).Replace(script)
	out, err := exec.CommandContext(t.Context(), bash, "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"displayName":"Alice"`, `"handle":"alice.tea"`,
		`"blockedUsers":[{"userId":"bob"`, `"end"`} {
		if !strings.Contains(strings.ReplaceAll(string(out), " ", ""), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// In a server as it is started: a newer profile comes on the stream of who shares a chat, a
// block holds, and who deletes the account is out, with the streams.
func TestPeople(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	tr := newTransport(t, true)
	ctx := t.Context()
	aliceToken, bobToken := token(t, dir, "alice"), token(t, dir, "bob")
	alice, bob := newUser("alice", aliceToken, p.addr, tr), newUser("bob", bobToken, p.addr, tr)
	people := func(token string) userv1connect.UserServiceClient {
		return userv1connect.NewUserServiceClient(&http.Client{Transport: bearer{token, tr}}, "http://"+p.addr)
	}
	made := testkit.Value(alice.chats.CreateChat(ctx, &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT,
		MemberIds: []string{"bob"}}))(t)
	id := made.GetOverview().GetChat().GetChatId()
	next := func(u *user, want func(*deliveryv1.Frame) bool) {
		t.Helper()
		st := testkit.Value(u.delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{}))(t)
		began := false
		for st.Receive() {
			for _, f := range st.Msg().GetFrames() {
				if f.GetHeartbeat() != nil && !began { // it has caught up
					began = true
					go func() {
						switch u {
						case bob:
							name := "Alice"
							_, _ = people(aliceToken).UpdateProfile(ctx, &userv1.UpdateProfileRequest{DisplayName: &name})
						default:
							_, _ = people(aliceToken).DeleteAccount(ctx, &userv1.DeleteAccountRequest{ConfirmUserId: "alice"})
						}
					}()
				}
				if want(f) {
					_ = st.Close()
					return
				}
			}
		}
		t.Fatalf("the stream ends: %v", st.Err())
	}
	next(bob, func(f *deliveryv1.Frame) bool {
		return f.GetProfileChanged().GetUserId() == "alice" && f.GetProfileChanged().GetVersion() == 1
	})
	testkit.Value(people(bobToken).BlockUser(ctx, &userv1.BlockUserRequest{UserId: "alice"}))(t)
	_, err := alice.messages.SendMessage(ctx, &messagev1.SendMessageRequest{ChatId: id, Content: "x"})
	testkit.Equal(t, "send past a block", connect.CodeOf(err), connect.CodePermissionDenied)
	next(alice, func(f *deliveryv1.Frame) bool {
		return f.GetEnd().GetCode() == deliveryv1.EndCode_END_CODE_SESSION_REVOKED
	})
	_, err = people(aliceToken).GetSettings(ctx, &userv1.GetSettingsRequest{})
	testkit.Equal(t, "after the deletion", connect.CodeOf(err), connect.CodeUnauthenticated)
	_, err = people(token(t, dir, "alice")).GetSettings(ctx, &userv1.GetSettingsRequest{})
	testkit.Equal(t, "with a new token", connect.CodeOf(err), connect.CodeUnauthenticated)
	found := testkit.Value(people(bobToken).GetProfile(ctx, &userv1.GetProfileRequest{UserId: "alice"}))(t)
	if !found.GetProfile().GetDeleted() || found.GetProfile().GetDisplayName() != "" {
		t.Errorf("%v", found)
	}
}
