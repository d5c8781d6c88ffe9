//go:build !windows

package app_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// installation is several servers and workers on real engines, with names of its own in
// all of them.
type installation struct {
	t     testing.TB
	flags []string
	redis *redis.Client
	keys  string // prefix in Redis
	store string // URL of DynamoDB
	rows  string // prefix of its tables
	kafka string
	dir   string
	// engines controls the servers underneath; nil where somebody else started them.
	engines *engines

	way     *cutter // to Redis
	tables  *cutter // to DynamoDB; nil: nothing is between
	servers [2]*member
	workers [2]*member
	jobs    []string // of the workers; none: there are no workers
	serve   []string // flags of the servers alone
	listen  string   // where the first server listens; "": anywhere
}

// member is a process that is started again under the same addresses.
type member struct {
	*process
	binary string
	args   []string
	links  *cutter // of a server
}

var allJobs = []string{"relay", "fanout", "projector", "reconcile"}

func newInstallation(t testing.TB) *installation {
	t.Helper()
	return newInstallationWith(t, allJobs...)
}

// newInstallationWith starts one whose workers have these jobs.
func newInstallationWith(t testing.TB, jobs ...string) *installation {
	t.Helper()
	in := prepare(t)
	in.jobs = jobs
	in.launch()
	return in
}

// newCuttable starts one that can be cut off from its store.
func newCuttable(t testing.TB) *installation {
	t.Helper()
	in := prepare(t)
	u, err := url.Parse(in.store)
	if err != nil {
		t.Fatal(err)
	}
	in.tables = newCutter(t, u.Host)
	in.flags = append(in.flags, "--dynamodb-endpoint", "http://"+in.tables.addr) // the last one counts
	in.jobs = allJobs
	in.launch()
	return in
}

// oneAlone begins the names of Kafka's topics that another installation would not use.
var oneAlone = []string{state.Name, record.Prefix}

// prepare makes what an installation stands on.
func prepare(t testing.TB) *installation {
	t.Helper()
	in := prepareEmpty(t)
	writeKey(t, filepath.Join(in.dir, "key.pem"))
	in.command("schemas", "register")
	return in
}

// prepareEmpty is prepare of one that has no schemas and no key, which an import brings.
func prepareEmpty(t testing.TB) *installation {
	t.Helper()
	env := map[string]string{}
	for _, name := range []string{"PARLEY_TEST_KAFKA", "PARLEY_TEST_DYNAMODB", "PARLEY_TEST_REDIS"} {
		if env[name] = os.Getenv(name); env[name] == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	id := strings.ToLower(rand.Text()[:10])
	o, err := redis.ParseURL(env["PARLEY_TEST_REDIS"])
	if err != nil {
		t.Fatal(err)
	}
	in := &installation{t: t, way: newCutter(t, o.Addr), redis: redis.NewClient(o), keys: id + ":",
		kafka: env["PARLEY_TEST_KAFKA"], dir: t.TempDir()}
	in.store, in.rows, in.engines = env["PARLEY_TEST_DYNAMODB"], id+"_", findEngines(t, env)
	t.Cleanup(func() { in.flush(); _ = in.redis.Close() })
	key := filepath.Join(in.dir, "key.pem")
	in.flags = []string{
		"--store", "dynamodb", "--dynamodb-endpoint", in.store, "--dynamodb-prefix", in.rows,
		"--redis", "redis://" + in.way.addr, "--redis-prefix", in.keys, "--kafka-brokers", in.kafka, "--key-file", key,
		"--replication", strconv.Itoa(strings.Count(in.kafka, ",") + 1),
	}
	in.command("tables", "apply")
	in.command("kafka", "apply")
	in.command("tables", "verify")
	in.command("kafka", "verify")
	kafkatest.Forget(t, in.kafka, oneAlone)
	return in
}

// launch starts servers and workers.
func (in *installation) launch() {
	t := in.t
	t.Helper()
	for i := range in.servers {
		cut := newCutter(t, "")
		in.servers[i] = &member{binary: binary(t), links: cut, args: append([]string{
			"--listen", cmp.Or(in.listen, "127.0.0.1:0"), "--allowed-hosts", "balancer.test", "--metrics-listen", "127.0.0.1:0",
			"--link-listen", cut.behind, "--link-address", cut.addr,
			"--data-dir", filepath.Join(in.dir, "none"), "--topic-creators", "alice",
		}, slices.Concat(in.serve, in.flags)...)}
		in.start(in.servers[i])
		in.listen = ""
		in.servers[i].args[1] = in.servers[i].addr // from now on
	}
	for i := range in.workers {
		if len(in.jobs) == 0 {
			continue
		}
		in.workers[i] = &member{binary: workersBinary(t),
			args: append(append(slices.Clone(in.flags), "run"), in.jobs...)}
		in.start(in.workers[i])
	}
}

// workersBinary returns the path of the workers.
func workersBinary(t testing.TB) string {
	t.Helper()
	racetest.SkipProgram(t)
	return builtWorkers.Path(t)
}

// writeKey makes a key that processes can share.
func writeKey(t testing.TB, path string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// command runs a command of the workers that must succeed.
func (in *installation) command(args ...string) string {
	in.t.Helper()
	out, err := exec.Command(workersBinary(in.t), append(slices.Clone(in.flags), args...)...).CombinedOutput()
	if err != nil {
		in.t.Fatalf("workers %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// start starts a process and waits until it says that it serves or works.
func (in *installation) start(m *member) {
	in.t.Helper()
	p := &process{cmd: exec.Command(m.binary, m.args...), gone: make(chan struct{})}
	p.cmd.Stdout = &p.log
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		in.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		in.t.Fatal(err)
	}
	up := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stderr)
		once := sync.OnceFunc(func() { close(up) })
		for lines.Scan() {
			text := lines.Text()
			_, _ = p.log.Write([]byte(text + "\n"))
			if _, addr, ok := strings.Cut(text, `msg="serving metrics" address=`); ok {
				p.metrics = addr
			}
			if strings.Contains(text, "msg=listening") || strings.Contains(text, "msg=working") {
				_, rest, _ := strings.Cut(text, " address=")
				p.addr, _, _ = strings.Cut(rest, " ")
				once()
			}
		}
		_ = p.cmd.Wait()
		close(p.gone)
		once()
	}()
	<-up
	select {
	case <-p.gone:
		in.t.Fatalf("%v did not start: %s", m.args[:2], &p.log)
	default:
	}
	m.process = p
	in.t.Cleanup(func() {
		p.leave()
		if in.t.Failed() {
			in.t.Logf("last words of %s: %s", filepath.Base(m.binary), p.log.tail(3<<10))
		}
	})
}

// freeze has the process stand still, or resume.
func (m *member) freeze(on bool) {
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	_ = m.cmd.Process.Signal(sig)
}

// again kills a process with no warning and restarts it.
func (in *installation) again(m *member) {
	in.t.Helper()
	m.kill()
	in.start(m)
}

// metric reads a number that a process shows.
func (m *member) metric(ctx context.Context, name string) (float64, error) {
	return readMetric(ctx, m.metricsAddr(), name)
}

// metricsAddr is where a process serves its metrics.
func (p *process) metricsAddr() string { return cmp.Or(p.metrics, p.addr) }

// flush loses everything that Redis has, at once; of a Redis that others may use only what
// this installation has there.
func (in *installation) flush() {
	if in.engines != nil {
		if err := in.redis.FlushAll(context.Background()).Err(); err != nil {
			in.t.Error(err)
		}
		return
	}
	err := in.redis.Eval(context.Background(),
		`for _,k in ipairs(redis.call('KEYS',ARGV[1]..'*')) do redis.call('DEL',k) end`, nil, in.keys).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		in.t.Error(err)
	}
}

func (in *installation) token(user string) string {
	in.t.Helper()
	out, err := exec.Command(binary(in.t), append(slices.Clone(in.flags), "token", user)...).Output()
	if err != nil {
		in.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (in *installation) user(name string, server int) *user {
	u := newUser(name, in.token(name), in.servers[server].addr, newTransport(in.t, false))
	// The first request makes the user known.
	if _, err := call(in.t.Context(), u.delivery.Sync, &deliveryv1.SyncRequest{}); err != nil {
		in.t.Fatal(err)
	}
	return u
}
