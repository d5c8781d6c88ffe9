package routing_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
)

// secured returns an address of the Redises that a careful operator would have, how to
// get in as its administrator, and the directory of its certificates.
func secured(t *testing.T, variable string) (routing.Options, string) {
	t.Helper()
	addr := os.Getenv(variable)
	if addr == "" {
		t.Skip("not run: " + variable + " is not set")
	}
	o := routing.Options{URL: addr, Password: os.Getenv("PARLEY_TEST_SECURED_PASSWORD")}
	dir := os.Getenv("PARLEY_TEST_SECURED_DIR")
	if strings.HasPrefix(addr, "rediss://") {
		o.TLS = trusting(t, filepath.Join(dir, "ca.pem"))
	}
	if strings.Contains(addr, "master=") {
		o.SentinelPassword = o.Password
	}
	return o, dir
}

func trusting(t *testing.T, file string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// inSecured is a user behind TLS at a Redis without a default user.
func inSecured(t *testing.T) *fixture {
	o, _ := secured(t, "PARLEY_TEST_SECURED_REDIS")
	return asUser(t, o)
}

// inCluster is a user of a Redis Cluster of three.
func inCluster(t *testing.T) *fixture {
	o, _ := secured(t, "PARLEY_TEST_SECURED_REDIS_CLUSTER")
	return asUser(t, o)
}

// inSentinel is a user at a primary that a sentinel knows.
func inSentinel(t *testing.T) *fixture {
	o, _ := secured(t, "PARLEY_TEST_SECURED_REDIS_SENTINEL")
	return asUser(t, o)
}

// S-43: the user of Parley cannot look into or destroy what is not Parley's, and the check
// at the start finds that it has all that is needed.
func TestSec_S_43_RedisUserMayDoLittle(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *fixture{"redis": inRedis, "secured": inSecured} {
		t.Run(name, func(t *testing.T) {
			r := open(t).engine.(*routing.Redis)
			c, ctx := r.Client(), t.Context()
			testkit.Must(t, r.Check(ctx))
			for _, cmd := range [][]any{
				{"FLUSHALL"}, {"FLUSHDB"}, {"CONFIG", "GET", "*"}, {"KEYS", "*"}, {"SCAN", "0"}, {"SHUTDOWN"},
				{"DEBUG", "SLEEP", "0"},
				{"ACL", "LIST"}, {"GET", "foreign"}, {"SET", "foreign", "x"}, {"PUBLISH", "foreign", "x"}, {"MONITOR"},
				{"REPLICAOF", "NO", "ONE"},
				{"EVAL", "return redis.call('GET','foreign')", "1", "foreign"},
			} {
				// DEBUG may be off for everybody.
				if err := c.Do(ctx, cmd...).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") &&
					!strings.Contains(err.Error(), "DEBUG command not allowed") {
					t.Errorf("%v: %v", cmd, err)
				}
			}
		})
	}
}

// Each right that a user lacks is named by the check at the start.
func TestCheckNamesWhatIsMissing(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *fixture{"redis": inRedis, "cluster": inCluster} {
		t.Run(name, func(t *testing.T) {
			r := open(t).engine.(*routing.Redis)
			testkit.Must(t, r.Check(t.Context()))
			variable := map[string]string{"redis": "PARLEY_TEST_REDIS", "cluster": "PARLEY_TEST_SECURED_REDIS_CLUSTER"}[name]
			admin, err := routing.OpenRedis(routing.Options{URL: os.Getenv(variable),
				Password: map[string]string{"cluster": os.Getenv("PARLEY_TEST_SECURED_PASSWORD")}[name]})
			testkit.Must(t, err)
			defer admin.Close()
			user := strings.TrimSuffix(r.Prefix(), ":")
			set := func(rule string) {
				if c, ok := admin.Client().(*redis.ClusterClient); ok {
					testkit.Must(t, c.ForEachMaster(t.Context(),
						func(ctx context.Context, n *redis.Client) error { return n.Do(ctx, "ACL", "SETUSER", user, rule).Err() }))
					return
				}
				testkit.Must(t, admin.Client().Do(t.Context(), "ACL", "SETUSER", user, rule).Err())
			}
			for _, rule := range routing.ACL("") {
				command, ok := strings.CutPrefix(rule, "+")
				if !ok || strings.Contains(command, "|") || strings.Contains("ping hello auth unsubscribe", command) {
					continue // not asked for by name, or not to be missed
				}
				set("-" + command)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				err := r.Check(ctx)
				cancel()
				set(rule)
				if err == nil || !strings.Contains(err.Error(), command) || !strings.Contains(err.Error(), "workers redis acl") ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("without %s: %v", command, err)
				}
			}
			testkit.Must(t, r.Check(t.Context()))
		})
	}
}

// What is wrong at the first connection is reported in one line that says what to check,
// and shows no password; ErrUnavailable is there only if waiting may help.
func TestCheck(t *testing.T) {
	good, dir := secured(t, "PARLEY_TEST_SECURED_REDIS")
	cluster, _ := secured(t, "PARLEY_TEST_SECURED_REDIS_CLUSTER")
	sentinel, _ := secured(t, "PARLEY_TEST_SECURED_REDIS_SENTINEL")
	change := func(o routing.Options, f func(*routing.Options)) routing.Options { f(&o); return o }
	first := func(o *routing.Options) { o.URL, _, _ = strings.Cut(o.URL, ",") }
	for says, tt := range map[string]struct {
		o    routing.Options
		away bool
	}{
		"": {o: good},
		"refuses the user or the password": {
			o: change(good, func(o *routing.Options) { o.Password = "hunter2" })},
		"wants a user and a password": {
			o: change(good, func(o *routing.Options) { o.URL = strings.Replace(o.URL, "admin@", "", 1); o.Password = "" })},
		"not signed by an authority in redis-ca": {
			o: change(good, func(o *routing.Options) { o.TLS = trusting(t, filepath.Join(dir, "other-ca.pem")) })},
		"does it want TLS (rediss://)": {
			o: change(good, func(o *routing.Options) { o.URL = strings.Replace(o.URL, "rediss", "redis", 1) }), away: true},
		"does it speak TLS (rediss://)": {
			o:    change(cluster, func(o *routing.Options) { first(o); o.URL = strings.Replace(o.URL, "redis", "rediss", 1) }),
			away: true},
		"is a cluster: add ?cluster=true": {o: change(cluster, first)},
		"is no cluster": {
			o: change(good, func(o *routing.Options) { o.URL += "?cluster=true" })},
		"PARLEY_REDIS_SENTINEL_PASSWORD": {
			o: change(sentinel, func(o *routing.Options) { o.SentinelPassword = "hunter2" })},
		"refuses the user or the password: look at redi": {
			o: change(sentinel, func(o *routing.Options) { o.Password = "hunter2" })},
		"know no master of that name": {o: change(sentinel, func(o *routing.Options) { o.URL += "x" })},
		"cannot be reached":           {o: routing.Options{URL: "redis://127.0.0.1:1"}, away: true},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			r, err := routing.OpenRedis(tt.o)
			testkit.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			err = r.Check(ctx)
			_ = r.Close()
			if tt.away && tt.o.TLS == nil && strings.HasPrefix(tt.o.URL, "rediss") {
				// A handshake that nobody answers ends with this time, after Close: without
				// the pause its goroutine would count as leaked.
				time.Sleep(routing.DialTimeout)
			}
			if (err == nil) != (says == "") || errors.Is(err, routing.ErrUnavailable) != tt.away {
				t.Fatal(err)
			}
			if err != nil && (!strings.Contains(err.Error(), says) || strings.ContainsAny(err.Error(), "\n") ||
				strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), good.Password)) {
				t.Error(err)
			}
		})
	}
}

// When sentinels make another server the primary, the table continues there.
func TestSentinelFailover(t *testing.T) {
	o, _ := secured(t, "PARLEY_TEST_SECURED_REDIS_SENTINEL")
	r, err := routing.OpenRedis(o)
	testkit.Must(t, err)
	defer r.Close()
	testkit.Must(t, r.Check(t.Context()))
	u, err := o.Parse()
	testkit.Must(t, err)
	s := redis.NewSentinelClient(&redis.Options{Addr: u.Addrs[0], Password: o.SentinelPassword})
	defer s.Close()
	where := func() string {
		at, err := s.GetMasterAddrByName(t.Context(), u.MasterName).Result()
		testkit.Must(t, err)
		return strings.Join(at, ":")
	}
	before := where()
	testkit.Succeeds(t, "fail over: a sentinel knows replicas only some time after its start", func() error {
		return s.Failover(t.Context(), u.MasterName).Err()
	})
	a := routing.Server{"a", "h:1", "g", 1}
	testkit.Succeeds(t, "claim at another primary than "+before, func() error {
		if err := r.Claim(t.Context(), a, time.Minute); err != nil {
			return err
		}
		if now := where(); now == before {
			return fmt.Errorf("the primary is still %s", now)
		}
		return nil
	})
	// The old primary may have taken it last.
	testkit.Must(t, r.Claim(t.Context(), a, time.Minute))
	list, err := r.Servers(t.Context())
	testkit.Must(t, err)
	if names(list) != "a/1" {
		t.Errorf("at the new primary: %v", list)
	}
	testkit.Must(t, r.Release(t.Context(), a))
}

// S-43: TLS, with an authority that is not the system's.
func TestRedisTLS(t *testing.T) {
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	m := miniredis.RunT(t)
	m.Close()
	testkit.Must(t, m.StartTLS(&tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}))
	pool := x509.NewCertPool()
	pool.AddCert(web.Certificate())
	for name, tt := range map[string]struct {
		o    routing.Options
		good bool
	}{
		"its authority": {routing.Options{URL: "rediss://" + m.Addr(),
			TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}, true},
		"another": {routing.Options{URL: "rediss://" + m.Addr()}, false},
		"none":    {routing.Options{URL: "redis://" + m.Addr()}, false},
	} {
		r, err := routing.OpenRedis(tt.o)
		testkit.Must(t, err)
		if err := r.Ping(t.Context()); (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
		_ = r.Close()
	}
}
