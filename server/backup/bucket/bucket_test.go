package bucket_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parley-chat/parley/server/backup/bucket"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// environment has the SDK find a server of S3: the address, and the credentials in it.
func environment(t *testing.T) (at *url.URL) {
	t.Helper()
	address := os.Getenv("PARLEY_TEST_S3")
	if address == "" {
		t.Skip("not run: PARLEY_TEST_S3 is not set")
	}
	at = testkit.Value(url.Parse(address))(t)
	secret, _ := at.User.Password()
	t.Setenv("AWS_ACCESS_KEY_ID", at.User.Username())
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	at.User = nil
	t.Setenv("AWS_ENDPOINT_URL", at.String())
	return at
}

// open opens a prefix of its own of the bucket that the engines have.
func open(t *testing.T, o bucket.Options) *bucket.Bucket {
	t.Helper()
	a := testkit.Value(bucket.Parse("s3://parley/" + uuid.NewString() + "/a"))(t)
	return testkit.Value(bucket.Open(t.Context(), a, o))(t)
}

func put(t *testing.T, b *bucket.Bucket, key, content string) error {
	t.Helper()
	return b.Put(t.Context(), key, strings.NewReader(content), int64(len(content)), sha256.Sum256([]byte(content)))
}

// Objects are stored, listed, read and removed, an empty one and one of 16 MiB included; what lies beside the
// prefix is not seen.
func TestObjects(t *testing.T) {
	environment(t)
	b := open(t, bucket.Options{})
	beside := testkit.Value(bucket.Open(t.Context(), bucket.Address{Bucket: b.Bucket, Prefix: b.Prefix + "b"},
		bucket.Options{}))(t)
	testkit.Must(t, put(t, beside, "data/x", "beside"))
	big := strings.Repeat("0123456789abcdef", 1<<20)
	for key, content := range map[string]string{"data/empty": "", "data/big": big, "backups/x.json": "{}"} {
		testkit.Must(t, put(t, b, key, content))
		if got, err := b.Get(t.Context(), key, int64(len(content))); err != nil || string(got) != content {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
	}
	if _, err := b.Get(t.Context(), "data/big", 1<<20); err == nil || !strings.Contains(err.Error(), "more than 1048576") {
		t.Errorf("an object that is too large: %v", err)
	}
	sizes := map[string]int64{}
	testkit.Must(t, b.List(t.Context(), "data/", func(o bucket.Object) {
		sizes[o.Key] = o.Size
		if age := time.Since(o.Changed); age > time.Hour || age < -time.Hour {
			t.Errorf("%s was changed %v ago", o.Key, age)
		}
	}))
	if len(sizes) != 2 || sizes["data/big"] != 16<<20 || sizes["data/empty"] != 0 {
		t.Errorf("%v", sizes)
	}
	for range 2 { // the second time it is missing
		testkit.Must(t, b.Remove(t.Context(), "data/big"))
	}
	if _, err := b.Get(t.Context(), "data/big", 16<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed object: %v", err)
	}
}

// A list has more than one page of S3, which is 1,000 objects.
func TestManyObjects(t *testing.T) {
	environment(t)
	b := open(t, bucket.Options{})
	var g sync.WaitGroup
	for _, from := range []int{0, 1, 2, 3} {
		g.Go(func() {
			for n := from; n < 1100; n += 4 {
				if err := put(t, b, "data/"+uuid.NewString(), "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	var keys []string
	testkit.Must(t, b.List(t.Context(), "", func(o bucket.Object) { keys = append(keys, o.Key) }))
	if len(keys) != 1100 {
		t.Errorf("%d objects", len(keys))
	}
}

// The server refuses what arrives with another content than its checksum, and keeps nothing of it.
func TestChecksum(t *testing.T) {
	environment(t)
	b := open(t, bucket.Options{})
	err := b.Put(t.Context(), "data/x", strings.NewReader("other"), 5, sha256.Sum256([]byte("x")))
	if err == nil || !strings.Contains(err.Error(), "another content") {
		t.Error(err)
	}
	if _, err := b.Get(t.Context(), "data/x", 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was stored: %v", err)
	}
}

// What an operator did wrong is named in one line, which has no secret.
func TestRefusals(t *testing.T) {
	at := environment(t)
	for name, c := range map[string]struct {
		bucket, key, secret, endpoint string
		says                          string
	}{
		"no bucket":    {bucket: "another-bucket", says: "there is no such bucket"},
		"no such key":  {key: "stranger", secret: "a secret of hers", says: "the credentials are wrong"},
		"wrong secret": {secret: "a secret of hers", says: "the credentials are wrong"},
		"no rights":    {key: "guest", secret: "guest's secret", says: "access is denied"},
		"no server":    {endpoint: "http://127.0.0.1:1", says: "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := os.Getenv("AWS_SECRET_ACCESS_KEY")
			for variable, value := range map[string]string{"AWS_ACCESS_KEY_ID": c.key, "AWS_SECRET_ACCESS_KEY": c.secret,
				"AWS_ENDPOINT_URL": c.endpoint} {
				if value != "" {
					t.Setenv(variable, value)
				}
			}
			if c.bucket == "" {
				c.bucket = "parley"
			}
			b := testkit.Value(bucket.Open(t.Context(), bucket.Address{Bucket: c.bucket, Prefix: "x"}, bucket.Options{}))(t)
			_, err := b.Get(t.Context(), "x", 1)
			for what, err := range map[string]error{"put": put(t, b, "x", "x"), "get": err,
				"list": b.List(t.Context(), "", func(bucket.Object) {})} {
				if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") ||
					strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "a secret of hers") ||
					!strings.Contains(err.Error(), "s3://"+c.bucket+"/x") {
					t.Errorf("%s at %s: %v", what, at, err)
				}
			}
		})
	}
}

// Without credentials or a region, an error says what is missing.
func TestNotConfigured(t *testing.T) {
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION",
		"AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(v, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	a := bucket.Address{Bucket: "parley"}
	_, err := bucket.Open(t.Context(), a, bucket.Options{})
	if err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Error(err)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	b := testkit.Value(bucket.Open(t.Context(), a, bucket.Options{}))(t)
	if _, err := b.Get(t.Context(), "x", 1); err == nil || !strings.Contains(err.Error(), "no credentials") {
		t.Error(err)
	}
}

// proxy stands between a client and the server, and can cut off or stop what passes.
type proxy struct {
	cut   atomic.Int64 // connections that are closed in the middle of what the server sends
	stop  atomic.Bool  // nothing passes any more
	ended <-chan struct{}
}

// stand has the SDK find a proxy in front of the server.
func (p *proxy) stand(t *testing.T, at *url.URL) {
	t.Helper()
	p.ended = t.Context().Done()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("AWS_ENDPOINT_URL", "http://"+l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c, at.Host)
		}
	}()
}

func (p *proxy) serve(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = io.Copy(s, &gated{c, p}) }()
	if p.cut.Load() > 0 {
		n, _ := io.CopyN(c, s, 100<<10)
		if n == 100<<10 {
			p.cut.Add(-1)
			return
		}
	}
	_, _ = io.Copy(c, &gated{s, p})
}

// gated reads until the proxy stops.
type gated struct {
	net.Conn
	p *proxy
}

func (g *gated) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.p.stop.Load() {
		<-g.p.ended
	}
	return n, err
}

// An object whose transfer is cut off is read again; where it is cut off each time, the error says so.
func TestCutOff(t *testing.T) {
	at := environment(t)
	var p proxy
	p.stand(t, at)
	b := open(t, bucket.Options{})
	content := strings.Repeat("x", 1<<20)
	testkit.Must(t, put(t, b, "x", content))
	for cuts, ok := range map[int64]bool{2: true, 3: false} {
		p.cut.Store(cuts)
		fresh := testkit.Value(bucket.Open(t.Context(), b.Address, bucket.Options{}))(t) // no connection from before
		got, err := fresh.Get(t.Context(), "x", 1<<20)
		if ok != (err == nil) || ok && !bytes.Equal(got, []byte(content)) ||
			!ok && !strings.Contains(err.Error(), "cut off") {
			t.Errorf("%d cuts: %d bytes, %v", cuts, len(got), err)
		}
	}
}

// A connection on which nothing moves ends an upload and a download, and not the process.
func TestStall(t *testing.T) {
	at := environment(t)
	var p proxy
	p.stand(t, at)
	b := open(t, bucket.Options{Stall: 200 * time.Millisecond})
	content := strings.Repeat("x", 8<<20)
	testkit.Must(t, put(t, b, "x", content))
	p.stop.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := b.Get(ctx, "x", 8<<20)
	for what, err := range map[string]error{"get": err, "put": put(t, b, "y", content), "remove": b.Remove(ctx, "x"),
		"list": b.List(ctx, "", func(bucket.Object) {})} {
		if err == nil || !strings.Contains(err.Error(), "stands still") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
