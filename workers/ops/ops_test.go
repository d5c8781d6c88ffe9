package ops_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/ops"
	"github.com/parley-chat/parley/workers/ops/opstest"
)

const chatA = "chat_01ARZ3NDEKTSV4RRFFQ69G5FAA"

// token adds an operator's token to each request.
type token struct {
	value string
	next  http.RoundTripper
}

func (t token) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.value)
	return t.next.RoundTrip(r)
}

func client(t *testing.T, r *opstest.Fixture) opsv1connect.OpsServiceClient {
	t.Helper()
	value, err := r.Key.IssueOperator("ada", time.Now(), time.Minute)
	testkit.Must(t, err)
	return opsv1connect.NewOpsServiceClient(&http.Client{Transport: token{value, http.DefaultTransport}}, "http://"+r.Addr)
}

func reason(t *testing.T, err error) (connect.Code, string) {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no error of connect", err)
	}
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok && info.GetDomain() == "parley" {
				return e.Code(), info.GetReason()
			}
		}
	}
	return e.Code(), ""
}

// Every call without an operator's token is refused (S-52).
func TestSec_S_52_OperatorsOnly(t *testing.T) {
	r := opstest.New(t, nil)
	user, err := r.Key.Issue("ada", time.Now(), time.Hour)
	testkit.Must(t, err)
	late, err := r.Key.IssueOperator("ada", time.Now().Add(-time.Hour), time.Minute)
	testkit.Must(t, err)
	for header, want := range map[string]string{"": "UNAUTHENTICATED", "Bearer " + user: "UNAUTHENTICATED",
		"Bearer " + late: "TOKEN_EXPIRED"} {
		for _, path := range []string{opsv1connect.OpsServiceListDeadLettersProcedure, "/", "/metrics"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.Addr+path, strings.NewReader("{}"))
			testkit.Must(t, err)
			req.Header.Set("Content-Type", "application/json")
			if header != "" {
				req.Header.Set("Authorization", header)
			}
			res, err := http.DefaultClient.Do(req)
			testkit.Must(t, err)
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusUnauthorized || path != "/" && path != "/metrics" &&
				!strings.Contains(string(body), want) || res.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s %.20s: %d %s", path, header, res.StatusCode, body)
			}
		}
	}
}

// Each error has a code and a reason; the text of unknown errors is hidden.
func TestErrors(t *testing.T) {
	r := opstest.New(t, nil)
	c := client(t, r)
	for name, tt := range map[string]struct {
		call func() error
		code connect.Code
		want string
	}{
		"not found": {func() error {
			_, err := c.GetDeadLetter(t.Context(), &opsv1.GetDeadLetterRequest{Id: "x"})
			return err
		}, connect.CodeNotFound, "DEAD_LETTER_NOT_FOUND"},
		"rules": {func() error {
			_, err := c.GetDeadLetter(t.Context(), &opsv1.GetDeadLetterRequest{})
			return err
		}, connect.CodeInvalidArgument, "INVALID_ARGUMENT"},
		"page token": {func() error {
			_, err := c.ListDeadLetters(t.Context(), &opsv1.ListDeadLettersRequest{PageToken: "AAAA"})
			return err
		}, connect.CodeInvalidArgument, "INVALID_PAGE_TOKEN"},
		"no group": {func() error {
			_, err := c.GetConsumerGroup(t.Context(), &opsv1.GetConsumerGroupRequest{Group: "x"})
			return err
		}, connect.CodeNotFound, "GROUP_NOT_FOUND"},
		"rules of a stream": {func() error {
			s, err := c.DiscardDeadLetters(t.Context(), &opsv1.DiscardDeadLettersRequest{All: true})
			for err == nil && s.Receive() {
			}
			return errors.Join(err, s.Err())
		}, connect.CodeInvalidArgument, "INVALID_ARGUMENT"},
	} {
		if code, why := reason(t, tt.call()); code != tt.code || why != tt.want {
			t.Errorf("%s: %s %s", name, code, why)
		}
	}
	// A panic of a handler is a failure of the dead letter, and its text is not shown.
	id := r.DeadLetter(opstest.Group, r.Event(chatA, 1), "permanent: bad")
	r.Handle = func(context.Context, *kafka.Record) error { panic(opstest.Secret) }
	s, err := c.RedriveDeadLetters(t.Context(),
		&opsv1.RedriveDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{Ids: []string{id}}, Execute: true})
	testkit.Must(t, err)
	var last *opsv1.RedriveDeadLettersResponse
	for s.Receive() {
		last = s.Msg()
	}
	if s.Err() != nil || last.GetSummary().GetFailed() != 1 ||
		last.GetResults()[0].GetReason() != "unknown: the handler panicked" {
		t.Fatalf("%v, %v", last, s.Err())
	}
}

// A redrive ends when its caller disconnects: the current dead letter is finished, and the
// others stay open (K-149).
func TestRedriveEndsWithItsCaller(t *testing.T) {
	r := opstest.New(t, nil)
	c := client(t, r)
	for n := range 30 {
		r.DeadLetter(opstest.Group, r.Event(chatA, n+1), "permanent: bad")
	}
	ctx, cancel := context.WithCancel(t.Context())
	handled := 0
	ended := make(chan struct{})
	r.Handle = func(ctx context.Context, rec *kafka.Record) error {
		handled++
		if rec.Offset == 5 {
			cancel()
			<-ctx.Done() // the caller has left: the service knows
			close(ended)
		}
		return nil
	}
	s, err := c.RedriveDeadLetters(ctx, &opsv1.RedriveDeadLettersRequest{All: true, Execute: true, Rate: 10_000})
	for err == nil && s.Receive() {
	}
	if err == nil {
		err = s.Err()
	}
	if code, _ := reason(t, err); code != connect.CodeCanceled {
		t.Fatal(err)
	}
	<-ended
	var open *opsv1.CountDeadLettersResponse
	for open.GetTotal() != 25 { // what was under way is written by then, or a moment later
		if open, err = c.CountDeadLetters(t.Context(), &opsv1.CountDeadLettersRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if handled != 5 {
		t.Fatalf("%d letters were handled", handled)
	}
}

// At most a few calls read a topic at the same time.
func TestCallsAreBounded(t *testing.T) {
	r := opstest.New(t, nil)
	c := client(t, r)
	release, entered := make(chan struct{}), make(chan struct{})
	r.Handle = func(context.Context, *kafka.Record) error {
		entered <- struct{}{}
		<-release
		return nil
	}
	const most = 8
	done := make(chan error, most)
	for n := range most {
		// Each of a key of its own: dead letters of one key are driven one after the other.
		id := r.DeadLetter(opstest.Group, r.Event(fmt.Sprint(chatA[:len(chatA)-1], n), n+1), "permanent: bad")
		go func() {
			s, err := c.RedriveDeadLetters(t.Context(),
				&opsv1.RedriveDeadLettersRequest{Filter: &opsv1.DeadLetterFilter{Ids: []string{id}}, Execute: true})
			for err == nil && s.Receive() {
			}
			done <- errors.Join(err, s.Err())
		}()
		<-entered
	}
	_, err := c.ListDeadLetters(t.Context(), &opsv1.ListDeadLettersRequest{})
	if code, why := reason(t, err); code != connect.CodeResourceExhausted || why != "BUSY" {
		t.Fatal(err)
	}
	close(release)
	for range most {
		testkit.Must(t, <-done)
	}
	if _, err := c.ListDeadLetters(t.Context(), &opsv1.ListDeadLettersRequest{}); err != nil {
		t.Fatal(err)
	}
}

// Beyond loopback both sides present certificates, in addition to the token.
func TestTLS(t *testing.T) {
	own, pool := opstest.Certificates(t)
	r := opstest.New(t, &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, MinVersion: tls.VersionTLS13})
	value, err := r.Key.IssueOperator("ada", time.Now(), time.Minute)
	testkit.Must(t, err)
	call := func(c *tls.Config) error {
		tr := &http.Transport{TLSClientConfig: c}
		defer tr.CloseIdleConnections()
		_, err := opsv1connect.NewOpsServiceClient(&http.Client{Transport: token{value, tr}},
			"https://"+r.Addr).ListDeadLetters(t.Context(), &opsv1.ListDeadLettersRequest{})
		return err
	}
	testkit.Must(t, call(&tls.Config{Certificates: []tls.Certificate{own}, RootCAs: pool}))
	if err := call(&tls.Config{RootCAs: pool}); err == nil {
		t.Error("let in without a certificate")
	}
	foreign, _ := opstest.Certificates(t)
	if err := call(&tls.Config{Certificates: []tls.Certificate{foreign}, RootCAs: pool}); err == nil {
		t.Error("let in with somebody else's certificate")
	}
}

func TestListen(t *testing.T) {
	r := opstest.New(t, nil)
	s, err := ops.New(ops.Config{
		Addr: r.Kafka, Store: r.Store, Decode: r.Serde.Decode, Key: r.Key, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler), Observe: func(string, string, time.Duration) {}, Migrator: r.Migrator,
	})
	testkit.Must(t, err)
	for _, addr := range []string{":0", "0.0.0.0:0", "example.org:80", "localhost:0", "x"} {
		if srv, err := ops.Listen(t.Context(), s, addr, nil); err == nil || !strings.Contains(err.Error(), "loopback only") {
			srv.Close()
			t.Errorf("%s: %v", addr, err)
		}
	}
	if srv, err := ops.Listen(t.Context(), s, r.Addr, nil); err == nil || strings.Contains(err.Error(), "\n") {
		srv.Close()
		t.Errorf("two on one port: %v", err)
	}
	if _, err := ops.New(ops.Config{}); err == nil {
		t.Error("made of nothing")
	}
}

// S-20, S-21: every string, bytes, list and map of every message has a maximum.
func TestEveryFieldHasAMaximum(t *testing.T) {
	open := regexp.MustCompile(`[*+]|\{\d+,\}`)
	checked := 0
	for _, f := range []protoreflect.FileDescriptor{opsv1.File_parley_ops_v1_dead_letter_proto,
		opsv1.File_parley_ops_v1_ops_service_proto, opsv1.File_parley_ops_v1_topic_migration_proto} {
		for i := range f.Messages().Len() {
			fields := f.Messages().Get(i).Fields()
			for j := range fields.Len() {
				fd := fields.Get(j)
				rules, _ := proto.GetExtension(fd.Options(), validate.E_Field).(*validate.FieldRules)
				checked++
				if fd.IsList() {
					if !rules.GetRepeated().HasMaxItems() {
						t.Errorf("%s: a list without max_items", fd.FullName())
					}
					rules = rules.GetRepeated().GetItems()
				}
				s := rules.GetString()
				switch p := s.GetPattern(); {
				case fd.Kind() == protoreflect.StringKind && !s.HasMaxLen() && !s.HasMaxBytes() && (p == "" || open.MatchString(p)):
					t.Errorf("%s: a string without a maximum", fd.FullName())
				case fd.Kind() == protoreflect.BytesKind && !rules.GetBytes().HasMaxLen():
					t.Errorf("%s: bytes without a maximum", fd.FullName())
				}
			}
		}
	}
	if checked < 90 {
		t.Fatalf("only %d fields were found", checked)
	}
}
