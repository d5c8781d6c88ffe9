package app_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
)

// surface is what a server offers to callers without a token.
type surface struct {
	tokens     bool // of demo users, on the first screen
	codesInLog bool // the page says so to people who sign in
	people     int  // whom the page at / signs in without a secret
	demoToken  int  // status of that
	reflection bool // v1 and v1alpha list the services
	metrics    int  // status, as of the pages below
	health     int
	documents  int
	registry   int // on loopback
	operators  int // on loopback, without a token
	kafka      bool
	beyond     bool // another machine reaches the registry, operators or Kafka
	warned     bool // of a network that can read everything
	advised    bool // to set metrics-listen
}

// surfaces is what each combination of settings offers: a server to develop with is one that
// only this machine can call, and nothing else opens what it offers.
var surfaces = func() map[string]surface {
	develops := surface{tokens: true, codesInLog: true, people: 2, demoToken: 200, reflection: true, metrics: 200,
		health: 200, documents: 200, registry: 200, operators: 401, kafka: true}
	serves := surface{demoToken: 404, metrics: 404, health: 200, documents: 200, registry: 200,
		operators: 401, kafka: true, advised: true}
	plain := serves
	plain.warned = true
	return map[string]surface{
		"127.0.0.1":                                      develops,
		"127.0.0.1 issuers":                              develops,
		"127.0.0.1 tls":                                  develops,
		"127.0.0.1 tls issuers":                          develops,
		"127.0.0.1 proxy=1":                              serves,
		"127.0.0.1 proxy=1 issuers":                      serves,
		"127.0.0.1 proxy=1 tls":                          serves,
		"127.0.0.1 proxy=1 tls issuers":                  serves,
		"127.0.0.1 proxy=10.0.0.0/8":                     serves,
		"127.0.0.1 proxy=10.0.0.0/8 issuers":             serves,
		"127.0.0.1 proxy=10.0.0.0/8 tls":                 serves,
		"127.0.0.1 proxy=10.0.0.0/8 tls issuers":         serves,
		"0.0.0.0":                                        plain,
		"0.0.0.0 issuers":                                plain,
		"0.0.0.0 tls":                                    serves,
		"0.0.0.0 tls issuers":                            serves,
		"0.0.0.0 proxy=1":                                serves,
		"0.0.0.0 proxy=1 issuers":                        serves,
		"0.0.0.0 proxy=1 tls":                            serves,
		"0.0.0.0 proxy=1 tls issuers":                    serves,
		"0.0.0.0 proxy=10.0.0.0/8,127.0.0.1":             serves,
		"0.0.0.0 proxy=10.0.0.0/8,127.0.0.1 issuers":     serves,
		"0.0.0.0 proxy=10.0.0.0/8,127.0.0.1 tls":         serves,
		"0.0.0.0 proxy=10.0.0.0/8,127.0.0.1 tls issuers": serves,
	}
}()

// Every combination of listener, proxy, TLS and issuers offers what stands in the table, to
// requests that came through a proxy and to those that say nothing of one.
func TestSurface(t *testing.T) {
	t.Parallel()
	_, cert, key := certificate(t, t.TempDir())
	for settings, want := range surfaces {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(settings)
			args, scheme := []string{"--listen", words[0] + ":0"}, "http"
			for _, word := range words[1:] {
				name, value, _ := strings.Cut(word, "=")
				switch name {
				case "proxy":
					args = append(args, "--behind-proxy", value)
				case "tls":
					scheme = "https"
					args = append(args, "--tls-cert", cert, "--tls-key", key)
				case "issuers":
					args = append(args, "--issuers", "https://login.example.com,aud=parley,users=*")
				}
			}
			s := startScreened(t, args...)
			for _, from := range []string{"", "198.51.100.7"} {
				got := s.surface(t, scheme, from)
				expect := want
				if from != "" { // the page never trusts a caller whom a proxy has named
					expect.codesInLog, expect.people, expect.demoToken = false, 0, 403
				}
				if got != expect {
					t.Errorf("forwarded for %q:\n%+v, want\n%+v", from, got, expect)
				}
			}
		})
	}
}

// screened is a server in this process with all that it prints.
type screened struct {
	said, log            safeBuffer
	port                 string
	stop                 func() // and waits until it has ended
	kafka, registry, ops string
}

var addressesLogged = regexp.MustCompile(`msg=listening address=\S+:(\d+) kafka=(\S+) registry=(\S+) ops=(\S+)`)

// startScreened starts a server with all its ports free ones, and ends it with the test.
func startScreened(t *testing.T, args ...string) *screened {
	t.Helper()
	s, dir := &screened{}, t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		app.Run(ctx, append([]string{"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen",
			"127.0.0.1:0", "--data-dir", dir}, args...), nil, &s.said, &s.log)
	}()
	s.stop = func() { cancel(); <-ended }
	t.Cleanup(s.stop)
	testkit.Eventually(t, "the first screen is whole", func() bool {
		select {
		case <-ended:
			t.Fatal(s.log.String())
		default:
		}
		return strings.Contains(s.said.String(), "in the registry at")
	})
	m := addressesLogged.FindStringSubmatch(s.log.String())
	if m == nil {
		t.Fatal(s.log.String())
	}
	s.port, s.kafka, s.registry, s.ops = m[1], m[2], m[3], m[4]
	return s
}

// surface asks for everything; from is whom a proxy names as the client, empty for none.
func (s *screened) surface(t *testing.T, scheme, from string) surface {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	do := func(method, url, body string, headers ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		testkit.Must(t, err)
		if from != "" {
			req.Header.Set("X-Forwarded-For", from)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := tr.RoundTrip(req)
		testkit.Must(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		testkit.Must(t, err)
		return res.StatusCode, string(text)
	}
	base := scheme + "://127.0.0.1:" + s.port
	same := func(method, body string, headers []string, urls ...string) (status int) {
		t.Helper()
		for i, url := range urls {
			got, text := do(method, url, body, headers...)
			if i > 0 && got != status {
				t.Errorf("%s: %d, the one before %d: %.200s", url, got, status, text)
			}
			status = got
		}
		return status
	}
	said, log := s.said.String(), s.log.String()
	got := surface{
		tokens:    strings.Contains(said, "ALICE=") || strings.Contains(said+log, "eyJ"),
		metrics:   same("GET", "", nil, base+"/metrics"),
		health:    same("GET", "", nil, base+"/healthz", base+"/readyz"),
		documents: same("GET", "", nil, base+"/docs", base+"/"),
		registry:  same("GET", "", nil, "http://"+s.registry+"/subjects"),
		operators: same("POST", "{}", []string{"Content-Type", "application/json"},
			"http://"+s.ops+"/parley.ops.v1.OpsService/ListDeadLetters"),
		kafka:   dials(s.kafka),
		beyond:  s.reachedBeyond(t),
		warned:  strings.Contains(log, "without TLS"),
		advised: strings.Contains(log, "set metrics-listen"),
	}
	got.reflection = s.reflects(t, base, from, "v1")
	if s.reflects(t, base, from, "v1alpha") != got.reflection {
		t.Error("one version of reflection is served and the other is not")
	}
	got.demoToken, _ = do("POST", base+"/app/demo-token", `{"user":"alice"}`, "Content-Type", "application/json")
	_, config := do("GET", base+"/app/config.json", "")
	got.codesInLog = strings.Contains(config, `"codesInLog":true`)
	got.people = strings.Count(config, `"alice"`) + strings.Count(config, `"bob"`)
	return got
}

// reflects reports whether reflection of a version lists the services, which needs HTTP/2.
func (s *screened) reflects(t *testing.T, base, from, version string) bool {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	tr.Protocols.SetHTTP2(true)
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		base+"/grpc.reflection."+version+".ServerReflection/ServerReflectionInfo",
		strings.NewReader("\x00\x00\x00\x00\x02\x3a\x00")) // list services
	testkit.Must(t, err)
	req.Header.Set("Content-Type", "application/grpc")
	if from != "" {
		req.Header.Set("X-Forwarded-For", from)
	}
	res, err := tr.RoundTrip(req)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return strings.Contains(string(text), "parley.chat.v1.ChatService")
}

// reachedBeyond reports whether an address of this machine that others can call reaches what
// is for loopback alone.
func (s *screened) reachedBeyond(t *testing.T) (reached bool) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	testkit.Must(t, err)
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		for _, addr := range []string{s.kafka, s.registry, s.ops} {
			_, port, err := net.SplitHostPort(addr)
			testkit.Must(t, err)
			reached = reached || dials(net.JoinHostPort(ip.IP.String(), port))
		}
	}
	return reached
}

func dials(addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
