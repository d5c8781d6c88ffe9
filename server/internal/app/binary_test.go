package app_test

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/racetest"
)

var built, builtWorkers = testkit.Program{Name: "server"}, testkit.Program{Name: "workers"}

// binary returns the path of the server.
func binary(t testing.TB) string {
	t.Helper()
	racetest.SkipProgram(t)
	return built.Path(t)
}

// besides runs a test that kills beside others if it has its few usual kills. A time for kills is the test's own: then
// such tests run one after the other.
func besides(t *testing.T) {
	t.Helper()
	if os.Getenv("PARLEY_KILLS") == "" {
		t.Parallel()
	}
}

func TestMain(m *testing.M) {
	if path := os.Getenv(profileVariable); path != "" {
		os.Exit(runProfiled(path))
	}
	// Few users do in tests what many do elsewhere; tests of limits set them.
	for name, value := range map[string]string{"PARLEY_LIMITS": "off", "PARLEY_MAX_REQUESTS": "0",
		"PARLEY_MAX_STREAMS_PER_USER": "1000"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	testkit.Waiting()
	code := m.Run()
	built.Remove()
	builtWorkers.Remove()
	os.Exit(code)
}

// process is a running server.
type process struct {
	cmd     *exec.Cmd
	addr    string
	metrics string // address of its listener for metrics; empty: addr has them
	kafka   string
	said    output // on standard output
	log     output
	gone    chan struct{}
}

// output keeps what a process writes.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	return len(b), nil
}

func (o *output) String() string { return o.tail(1 << 20) }

func (o *output) tail(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text[max(0, len(o.text)-n):])
}

var (
	listening = regexp.MustCompile(`listening on https?://(\S+),`)
	onKafka   = regexp.MustCompile(`on Kafka at (\S+)`)
)

// launch starts the real binary, with further flags, and waits until it listens.
func launch(t testing.TB, dir, listen string, more ...string) *process {
	t.Helper()
	args := []string{"--listen", listen, "--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--data-dir",
		dir}
	return start(t, exec.Command(binary(t), append(args, more...)...))
}

// metricsListener returns the address of the listener for metrics of a process that launch
// started, which only its log names.
func (p *process) metricsListener(t testing.TB) string {
	t.Helper()
	const line = `msg="serving metrics" address=`
	testkit.Eventually(t, "metrics are served", func() bool { return strings.Contains(p.log.String(), line) })
	_, address, _ := strings.Cut(p.log.String(), line)
	address, _, _ = strings.Cut(address, "\n")
	return address
}

// start starts a command that runs the binary, and waits until that listens.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, gone: make(chan struct{})}
	cmd.Stderr = &p.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for (p.addr == "" || p.kafka == "") && lines.Scan() {
		_, _ = p.said.Write(append(lines.Bytes(), '\n')) // to memory
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			p.addr = m[1]
		}
		if m := onKafka.FindStringSubmatch(lines.Text()); m != nil {
			p.kafka = m[1]
		}
	}
	go func() {
		for lines.Scan() { // the rest of the greeting
			_, _ = p.said.Write(append(lines.Bytes(), '\n'))
		}
		_ = cmd.Wait()
		close(p.gone)
	}()
	if p.addr == "" {
		<-p.gone
		t.Fatalf("the server did not start: %s", &p.log)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the server's last words: %s", p.log.tail(4<<10))
		}
	})
	return p
}

var opsText = regexp.MustCompile(`\bops=(\S+)`)

// opsOf is where a server serves operators. It logs so before its greeting, by another pipe.
func opsOf(t testing.TB, p *process) (address string) {
	t.Helper()
	testkit.Eventually(t, "the server says where it serves operators", func() bool {
		m := opsText.FindStringSubmatch(p.log.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return address
}

// kill ends the process at once, without any chance to tidy up.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// leave has a process end in good order, so that the next installation need not wait until
// Kafka has given up its members of groups; one that takes too long is killed.
func (p *process) leave() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.gone:
	case <-time.After(leaveTime):
		p.kill()
	}
}

const leaveTime = 5 * time.Second

// token asks the binary for a user's token, also while a server runs.
func token(t testing.TB, dir, user string) string {
	t.Helper()
	code, out, errs := run(t.Context(), nil, "--data-dir", dir, "token", user)
	if code != 0 {
		t.Fatal(errs)
	}
	return strings.TrimSpace(out)
}

// user is a person with clients of all services.
type user struct {
	name     string
	chats    chatv1connect.ChatServiceClient
	messages messagev1connect.MessageServiceClient
	delivery deliveryv1connect.DeliveryServiceClient
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// newTransport makes connections of its own; h2 without TLS if asked for.
func newTransport(t testing.TB, h2 bool) *http.Transport {
	tr := &http.Transport{MaxIdleConnsPerHost: 256}
	if h2 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func newUser(name, token, addr string, tr http.RoundTripper, opts ...connect.ClientOption) *user {
	hc, base := &http.Client{Transport: bearer{token, tr}}, "http://"+addr
	return &user{
		name:     name,
		chats:    chatv1connect.NewChatServiceClient(hc, base, opts...),
		messages: messagev1connect.NewMessageServiceClient(hc, base, opts...),
		delivery: deliveryv1connect.NewDeliveryServiceClient(hc, base, opts...),
	}
}

// call repeats an RPC until it succeeds or ctx ends: the server is away for a
// moment now and then.
func call[Q, S any](ctx context.Context, f func(context.Context, *Q) (*S, error), req *Q) (*S, error) {
	for {
		res, err := f(ctx, req)
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable, connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled,
			connect.CodeDeadlineExceeded:
			if err == nil {
				return res, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			select { // not as fast as it goes: the server needs the processor to come back
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		default:
			return res, err
		}
	}
}
