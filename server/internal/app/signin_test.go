package app_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	authv1 "github.com/parley-chat/parley/gen/parley/auth/v1"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
)

// codeLine is a code in the log.
var codeLine = regexp.MustCompile(`a code to sign in with" identifier=(\S+) code=(\d{6})`)

// codeIn is the last code for an identifier in a log; "" for none.
func codeIn(log, identifier string) (code string) {
	for _, m := range codeLine.FindAllStringSubmatch(log, -1) {
		if m[1] == identifier {
			code = m[2]
		}
	}
	return code
}

// The lines of the page on signing in are run as they stand there; the code is the one of the log.
func TestSignInPage(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	page := string(testkit.Value(os.ReadFile("../../docs/sign-in.md"))(t))
	var lines strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		lines.WriteString(block[1])
	}
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	file := filepath.Join(t.TempDir(), "code")
	const typed = "CODE=042117\n"
	if strings.Count(lines.String(), typed) != 1 {
		t.Fatal("the page does not say where the code goes")
	}
	script := strings.NewReplacer("127.0.0.1:8080", p.addr,
		typed, "until CODE=$(cat "+file+" 2>/dev/null) && [ -n \"$CODE\" ]; do sleep 0.02; done\n").Replace(lines.String())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if code := codeIn(p.log.String(), "ann@example.com"); code != "" {
				if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
					t.Error(err)
				}
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	out, err := exec.CommandContext(ctx, bash, "-c", "set -e\n"+script+"echo \"$TOKENS\"\n").CombinedOutput()
	cancel()
	<-done
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(out)
	for want, n := range map[string]int{`"requestId":"`: 1, `"overviews":[]`: 1, `"device":"laptop"`: 1,
		`"current":true`: 1, `"revoked":0`: 1, "204\n": 1, "INVALID_REFRESH_TOKEN": 1, " 401\n": 1,
		`"refreshToken":"prt_`: 1} {
		if strings.Count(strings.ReplaceAll(text, `": `, `":`), want) != n {
			t.Errorf("%s stands not %d times in\n%s", want, n, text)
		}
	}
	for _, word := range regexp.MustCompile("`([a-z]+-[a-z]+)`").FindAllStringSubmatch(page, -1) {
		if code, help, _ := run(t.Context(), nil, "--help"); word[1] != "key-file" &&
			(code != 0 || !strings.Contains(help, "--"+word[1])) {
			t.Errorf("the page speaks of %s, which is no setting", word[1])
		}
	}
	for _, secret := range []string{"prt_", "eyJ"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log has a token: %s", p.log.tail(4<<10))
		}
	}
}

// person signs in at a server in this process, whose clocks advance by what is added.
type person struct {
	t    *testing.T
	addr string
	dir  string
	log  func() string
	by   *atomic.Int64
}

func (p *person) client(token string) authv1connect.AuthServiceClient {
	return authv1connect.NewAuthServiceClient(&http.Client{Transport: bearer{token, newTransport(p.t, false)}},
		"http://"+p.addr)
}

// signIn begins a session of a person of their own name.
func (p *person) signIn(identifier string) *authv1.Tokens {
	p.t.Helper()
	p.by.Add(int64(time.Minute))
	c := p.client("")
	had := codeIn(p.log(), identifier)
	r := testkit.Value(c.RequestCode(p.t.Context(), &authv1.RequestCodeRequest{Identifier: identifier}))(p.t)
	var res *authv1.VerifyCodeResponse
	testkit.Eventually(p.t, "the code is in the log", func() bool {
		code := codeIn(p.log(), identifier)
		if code == had {
			return false
		}
		var err error
		res, err = c.VerifyCode(p.t.Context(), &authv1.VerifyCodeRequest{Identifier: identifier, RequestId: r.GetRequestId(),
			Code: code})
		return err == nil
	})
	return res.GetTokens()
}

// opened opens a stream with a token, and returns once it is live; the channel has how it ends.
func (p *person) opened(token string) <-chan deliveryv1.EndCode {
	p.t.Helper()
	u := newUser("ann", token, p.addr, newTransport(p.t, true))
	st := testkit.Value(u.delivery.Subscribe(p.t.Context(), &deliveryv1.SubscribeRequest{}))(p.t)
	p.t.Cleanup(func() { _ = st.Close() })
	if !st.Receive() {
		p.t.Fatal(st.Err())
	}
	ended := make(chan deliveryv1.EndCode, 1)
	go func() {
		var end *deliveryv1.End
		for st.Receive() {
			for _, f := range st.Msg().GetFrames() {
				if f.GetEnd() != nil {
					end = f.GetEnd()
				}
			}
		}
		ended <- end.GetCode()
	}()
	return ended
}

func newPerson(t *testing.T, flags ...string) *person {
	t.Helper()
	p := &person{t: t, by: &atomic.Int64{}, dir: t.TempDir()}
	began := time.Now()
	ctx := app.WithClocks(t.Context(), clock.Clocks{
		Wall:   func() time.Time { return time.Now().Add(time.Duration(p.by.Load())) },
		Steady: func() time.Duration { return time.Since(began) + time.Duration(p.by.Load()) },
	})
	greeting, logs, _ := greetedIn(ctx, t, "127.0.0.1:0", p.dir, append(flags, "--log-format", "text")...)
	p.addr, p.log = listening.FindStringSubmatch(greeting)[1], logs.String
	return p
}

// S-12: somebody copies Ann's refresh token and uses it. When the second of the two comes, both lose
// the session: tokens are refused, and the open streams end.
func TestSec_S_12_StolenRefreshTokenEndsStreams(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	ann := p.signIn("ann@example.com")
	other := p.signIn("ann@example.com")
	c := p.client("")
	stream, otherStream := p.opened(ann.GetAccessToken()), p.opened(other.GetAccessToken())
	thief := testkit.Value(c.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: ann.GetRefreshToken()}))(t)
	thiefStream := p.opened(thief.GetTokens().GetAccessToken())
	p.by.Add(int64(11 * time.Second))
	for _, token := range []string{ann.GetRefreshToken(), thief.GetTokens().GetRefreshToken()} {
		if _, err := c.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: token}); connect.CodeOf(err) !=
			connect.CodeUnauthenticated {
			t.Errorf("refreshed: %v", err)
		}
	}
	for name, ended := range map[string]<-chan deliveryv1.EndCode{"Ann's": stream, "the thief's": thiefStream} {
		testkit.Equal(t, name+" stream", <-ended, deliveryv1.EndCode_END_CODE_SESSION_REVOKED)
	}
	for _, token := range []string{ann.GetAccessToken(), thief.GetTokens().GetAccessToken()} {
		if _, err := p.client(token).ListSessions(t.Context(), &authv1.ListSessionsRequest{}); connect.CodeOf(err) !=
			connect.CodeUnauthenticated {
			t.Errorf("access: %v", err)
		}
	}
	list := testkit.Value(p.client(other.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
	testkit.Equal(t, "sessions", len(list.GetSessions()), 1)
	select {
	case code := <-otherStream:
		t.Errorf("the other session's stream ended: %v", code)
	default:
	}
	if !strings.Contains(p.log(), "security: refresh token reused") {
		t.Error("the theft is not reported")
	}
}

// S-13: who signs out ends the streams of this session, those of others continue; a session that nobody
// refreshed for 30 days is over.
func TestSec_S_13_SignOutEndsStreams(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	one, two := p.signIn("ann@example.com"), p.signIn("ann@example.com")
	first, second := p.opened(one.GetAccessToken()), p.opened(two.GetAccessToken())
	_ = testkit.Value(p.client(one.GetAccessToken()).SignOut(t.Context(), &authv1.SignOutRequest{}))(t)
	testkit.Equal(t, "its stream", <-first, deliveryv1.EndCode_END_CODE_SESSION_REVOKED)
	select {
	case code := <-second:
		t.Errorf("another session's stream ended: %v", code)
	default:
	}
	c := p.client("")
	p.by.Add(int64(29 * 24 * time.Hour))
	next := testkit.Value(c.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: two.GetRefreshToken()}))(t)
	p.by.Add(int64(31 * 24 * time.Hour))
	_, err := c.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: next.GetTokens().GetRefreshToken()})
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("after 31 days: %v", err)
	}
}

// S-13: a stream whose first message comes only after the session was ended is not opened any more,
// though the call was let in before.
func TestSec_S_13_StreamsThatBeginAfterTheEnd(t *testing.T) {
	t.Parallel()
	p := newPerson(t, "--topic-creators", "alice")
	alice := newTopicClients(t, p.dir, p.addr)
	ctx := t.Context()
	_ = testkit.Value(alice.topics.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: "work"}))(t)
	_ = testkit.Value(alice.topics.SetBinding(ctx, &topicv1.SetBindingRequest{Topic: "work",
		Principal: p.signIn("ann@example.com").GetUserId(), Role: topicv1.Role_ROLE_ADMIN}))(t)
	attach := &topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{
		Attach: &topicv1.Attach{Topic: "work", Group: "$queue"}}}
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		session := p.signIn("ann@example.com").GetAccessToken()
		st, err := topicv1connect.NewConsumerServiceClient(&http.Client{Transport: bearer{session, newTransport(t, true)}},
			"http://"+p.addr, connect.WithGRPC()).ConsumeBidi(ctx)
		testkit.Must(t, err)
		testkit.Must(t, st.Send(nil)) // headers alone
		time.Sleep(wait)              // so that the call is let in
		_ = testkit.Value(p.client(session).SignOut(ctx, &authv1.SignOutRequest{}))(t)
		_ = st.Send(attach) // an error is Receive's, too
		_, err = st.Receive()
		_ = st.CloseResponse()
		if connect.CodeOf(err) == connect.CodeUnauthenticated && wait < 10*time.Second {
			continue // it came after the end
		}
		testkit.Equal(t, "the stream", connect.CodeOf(err), connect.CodePermissionDenied)
		return
	}
}

// Sessions outlive the server: it is killed, and the refresh token of before is good.
func TestSessionsSurviveAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0", "--demo-users", "off")
	ann := &person{t: t, addr: p.addr, log: p.log.String, by: &atomic.Int64{}}
	tokens := ann.signIn("ann@example.com")
	p.kill()
	p = launch(t, dir, "127.0.0.1:0", "--demo-users", "off", "--codes", "none")
	ann.addr = p.addr
	next := testkit.Value(ann.client("").Refresh(t.Context(),
		&authv1.RefreshRequest{RefreshToken: tokens.GetRefreshToken()}))(t).GetTokens()
	testkit.Equal(t, "user", next.GetUserId(), tokens.GetUserId())
	_ = testkit.Value(ann.client(next.GetAccessToken()).ListSessions(t.Context(), &authv1.ListSessionsRequest{}))(t)
	_, err := ann.client("").RequestCode(t.Context(), &authv1.RequestCodeRequest{Identifier: "bob@example.com"})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("without a way for codes: %v", err)
	}
}

// What is set wrong for codes is said in one line at the start.
func TestSettingsOfCodes(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"codes must be auto, log, smtp, webhook or none": {"--codes", "pigeon"},
		"codes smtp needs smtp-address":                  {"--codes", "smtp"},
		"codes webhook needs codes-webhook":              {"--codes", "webhook"},
		"must be https://":                               {"--codes", "webhook", "--codes-webhook", "http://example.com"},
		"secret must have at least":                      {"--codes", "webhook", "--codes-webhook", "https://example.com"},
		"the sender of mail":                             {"--codes", "smtp", "--smtp-address", "127.0.0.1:25"},
	} {
		code, _, stderr := run(t.Context(), nil, append(args, "--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0",
			"--data-dir", t.TempDir())...)
		if code == 0 || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
}
