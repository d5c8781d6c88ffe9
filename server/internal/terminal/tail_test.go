package terminal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// server has one chat with three messages, two of which come by the stream, to those whose
// token is good.
type server struct {
	deliveryv1connect.UnimplementedDeliveryServiceHandler
}

func (server) Sync(context.Context, *deliveryv1.SyncRequest) (*deliveryv1.SyncResponse, error) {
	return &deliveryv1.SyncResponse{Generation: "g", Token: "t", Overviews: []*chatv1.ChatOverview{
		{Chat: &chatv1.Chat{ChatId: "c"}, Head: &chatv1.ChatHead{Version: 1, Sequence: 1}},
	}}, nil
}

func (server) Subscribe(
	_ context.Context, _ *deliveryv1.SubscribeRequest, out *connect.ServerStream[deliveryv1.SubscribeResponse],
) error {
	res := &deliveryv1.SubscribeResponse{}
	for v := int64(1); v <= 3; v++ {
		res.Frames = append(res.Frames, &deliveryv1.Frame{ChatId: "c", AfterVersion: v - 1, Version: v,
			Body: &deliveryv1.Frame_Message{Message: &messagev1.Message{Sequence: v, Version: v, Content: "tea & cake"}}})
	}
	res.Frames = append(res.Frames, &deliveryv1.Frame{Body: &deliveryv1.Frame_End{
		End: &deliveryv1.End{Code: deliveryv1.EndCode_END_CODE_REPLACED}}})
	return out.Send(res)
}

// serve starts the server and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(deliveryv1connect.NewDeliveryServiceHandler(server{}))
	refuse := connect.NewErrorWriter()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good/alice" {
			_ = refuse.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errors.New("another token is needed")))
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// run runs a line for a server that the settings say listens at an address.
func run(t *testing.T, listen, line string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "server", SilenceErrors: true, SilenceUsage: true}
	config := func() (Config, error) {
		return Config{Listen: listen, Stdout: &out, Stderr: &errs,
			Issue: func(user string) (string, error) { return "good/" + user, nil }}, nil
	}
	root.AddCommand(Tail(config), Chat(config))
	root.SetArgs(strings.Fields(line))
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// Lines are frames in protobuf's JSON.
func TestTail(t *testing.T) {
	listen := serve(t)
	stdout, stderr, err := run(t, listen, "tail alice -n 2")
	if err != nil || stderr != "" || strings.Count(stdout, "\n") != 2 {
		t.Fatalf("%q, %q, %v", stdout, stderr, err)
	}
	for i, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
		var got struct {
			ChatID  string `json:"chatId"`
			Version string
			Message struct{ Sequence, Content string }
		}
		want := []string{"2", "3"}[i]
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.ChatID != "c" || got.Version != want ||
			got.Message.Sequence != got.Version || got.Message.Content != "tea & cake" {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
}

// A position is kept where the lines end, and the next tail prints those behind it.
func TestPosition(t *testing.T) {
	listen, path := serve(t), filepath.Join(t.TempDir(), "position")
	for i, want := range []string{`"version":"2"`, `"version":"3"`} {
		stdout, _, err := run(t, listen, "tail alice -n 1 --position "+path)
		if err != nil || !strings.Contains(strings.ReplaceAll(stdout, " ", ""), want) || strings.Count(stdout, "\n") != 1 {
			t.Fatalf("%d: %q, %v", i, stdout, err)
		}
	}
	if err := os.WriteFile(path, []byte("tea"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, listen, "tail alice --position "+path); err == nil ||
		!strings.Contains(err.Error(), "holds no position") {
		t.Error(err)
	}
	if _, _, err := run(t, listen, "tail alice -n 1 --position /nowhere/at/all"); err == nil {
		t.Error("a position that cannot be kept")
	}
}

// Who somebody is, and at which server.
func TestLogin(t *testing.T) {
	listen, dir := serve(t), t.TempDir()
	file := func(name, token string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	_, port, _ := strings.Cut(listen, ":")
	for _, tt := range []struct {
		listen, line, says string
		usage              bool
	}{
		{listen, "tail --token-file " + file("good", "good/alice\n") + " -n 1", "", false},
		{"0.0.0.0:" + port, "tail alice -n 1", "", false},
		{"127.0.0.1:1", "tail alice -n 1 --url http://" + listen + "/", "", false},
		{listen, "tail alice", "another stream of the user took this one's place", false},
		{listen, "tail bob", "another token is needed", false},
		{listen, "tail --token-file " + file("bad", "bad"), "put another one there", false},
		{listen, "tail --token-file " + file("empty", ""), "put another one there", false},
		{listen, "tail --token-file /nowhere/token", "no such file", false},
		{"127.0.0.1:1", "tail alice", "no server answers at http://127.0.0.1:1", false},
		{listen, "tail", "a user is needed", true},
		{listen, "tail alice bob", "one user", true},
		{listen, "tail alice --token-file x", "name a user or a token file", true},
		{listen, "tail alice --url https://chat.example.com", "go to this machine only", true},
		{listen, "tail alice --url chat.example.com", "url must be like", true},
		{listen, "tail alice -n -1", "must not be negative", true},
		{listen, "tail alice --dance", "tail: unknown flag", true},
	} {
		_, stderr, err := run(t, tt.listen, tt.line)
		var usage cmdline.UsageError
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) ||
			errors.As(err, &usage) != tt.usage || strings.Contains(stderr, "panic") {
			t.Errorf("%s: %v, %q", tt.line, err, stderr)
		}
	}
}
