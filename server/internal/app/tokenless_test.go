package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
)

// serveTokenless serves what needs no token, over HTTP/2 as for gRPC.
func serveTokenless(t *testing.T) (client *http.Client, url string, drain func()) {
	t.Helper()
	mux := http.NewServeMux()
	drain = handleTokenless(mux, []string{"parley.chat.v1.ChatService"}, true)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}, srv.URL, drain
}

// blanks is a JSON text that never comes to an end by itself; it counts what was
// taken of it.
type blanks struct{ taken int64 }

func (b *blanks) Read(p []byte) (int, error) {
	const all = 1 << 20
	if b.taken >= all {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = ' '
	}
	b.taken += int64(len(p))
	return len(p), nil
}

// Whoever has no token cannot make the server keep what it sends (S-03, S-27).
func TestOpenRequestsAreSmall(t *testing.T) {
	client, url, _ := serveTokenless(t)
	for path, contentType := range map[string]string{
		"/grpc.health.v1.Health/Check":                                   "application/json",
		"/grpc.health.v1.Health/Watch":                                   "application/grpc",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "application/grpc",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "application/grpc",
	} {
		body := &blanks{}
		var send io.Reader = body
		if contentType == "application/grpc" { // a message of 1 MiB
			send = io.MultiReader(strings.NewReader("\x00\x00\x10\x00\x00"), body)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, send)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		res, err := client.Do(req)
		if err != nil {
			continue // cut off in the middle of it
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		status := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
		if refused := strings.Contains(string(text), "resource_exhausted") || status == "8"; !refused {
			t.Errorf("%s: %s, grpc-status %q: %.200s", path, res.Status, status, text)
		}
	}
}

func TestHealthEndsAtDrain(t *testing.T) {
	client, url, drain := serveTokenless(t)
	health := grpchealth.NewClient(client, url)
	check := func(service string) grpchealth.Status {
		t.Helper()
		res, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return res.Status
	}
	for _, service := range []string{"", "parley.chat.v1.ChatService"} {
		if s := check(service); s != grpchealth.StatusServing {
			t.Errorf("%q before the drain: %v", service, s)
		}
	}
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "nothing"}); err == nil {
		t.Error("health of nothing")
	}
	// A watch as it is: the library's client would restart it.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/grpc.health.v1.Health/Watch",
		strings.NewReader("\x00\x00\x00\x00\x02{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	drain()
	text, err := io.ReadAll(res.Body) // comes to an end
	if err != nil || !strings.Contains(string(text), "SERVING_STATUS_SERVING") {
		t.Fatalf("watch: %q, %v", text, err)
	}
	for _, service := range []string{"", "parley.chat.v1.ChatService"} {
		if s := check(service); s != grpchealth.StatusNotServing {
			t.Errorf("%q after the drain: %v", service, s)
		}
	}
}

func TestReflectionListsServices(t *testing.T) {
	client, url, _ := serveTokenless(t)
	stream := grpcreflect.NewClient(client, url).NewStream(context.Background())
	defer stream.Close()
	names, err := stream.ListServices()
	if err != nil || len(names) != 1 || names[0] != "parley.chat.v1.ChatService" {
		t.Fatalf("%v, %v", names, err)
	}
}
