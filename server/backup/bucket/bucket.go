// Package bucket stores objects in a bucket of S3, or of another server with its interface.
//
// It owns the SDK's client, the form of an address (s3://BUCKET/PREFIX) and the text of errors. It knows no
// backup.
//
// Region, credentials and endpoint come from the places that the SDK reads: the environment, the files that it
// shares with other programs, the role of the machine. With an endpoint (AWS_ENDPOINT_URL) the name of the bucket
// is part of the path, because few servers other than AWS have a host name for each bucket.
//
// Concurrency: a Bucket is safe for concurrent use.
package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
)

const (
	scheme = "s3://"
	// stallAfter ends a request that has moved no byte for that time. The SDK bounds how long a connection takes to open,
	// and not what comes after.
	stallAfter = time.Minute
	// readings is how often an object is requested again whose body was cut off. The SDK retries a request
	// only until its response begins.
	readings = 3
	// defaultRegion is for a server with an endpoint of its own, where any region does.
	defaultRegion = "us-east-1"
)

// Address is a place in a bucket.
type Address struct {
	Bucket string
	Prefix string // without slashes at its ends; may be empty
}

// Is reports whether a name is an address of this package, well-formed or not.
func Is(name string) bool { return strings.HasPrefix(name, scheme) }

// address is what S3 accepts as the name of a bucket, and a prefix that needs no quotes anywhere.
var address = regexp.MustCompile(`^s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9._=+@-]+)*)/*$`)

// Parse reads s3://BUCKET or s3://BUCKET/PREFIX.
func Parse(name string) (Address, error) {
	m := address.FindStringSubmatch(name)
	if m == nil || len(m[2]) > 500 || strings.Contains(m[2]+"/", "/./") || strings.Contains(m[2]+"/", "/../") {
		return Address{}, fmt.Errorf("%.100q is no address of S3: it must be s3://BUCKET or s3://BUCKET/PREFIX, "+
			"with letters, digits and . _ = + @ - in PREFIX", name)
	}
	return Address{Bucket: m[1], Prefix: strings.TrimPrefix(m[2], "/")}, nil
}

func (a Address) key(name string) string { return strings.TrimPrefix(a.Prefix+"/"+name, "/") }

// URL is the address of an object.
func (a Address) URL(name string) string { return scheme + a.Bucket + "/" + a.key(name) }

// Object is an object as a list has it.
type Object struct {
	Key     string // below the prefix of the address
	Size    int64  // bytes
	Changed time.Time
}

// Options set a Bucket up.
type Options struct {
	Stall time.Duration // ends a request that moves no byte; by default a minute
}

// Bucket is a place in a bucket.
type Bucket struct {
	Address
	client *s3.Client
	stall  time.Duration
}

// Open makes a client. It sends nothing yet.
func Open(ctx context.Context, a Address, o Options) (*Bucket, error) {
	shared, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}), // what matters comes as an error
		// Uploads have a checksum that is computed once, and downloads are compared with it. The SDK's own would be
		// another one, which not every server knows.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired))
	if err != nil {
		return nil, fmt.Errorf("s3: configuration of AWS: %w", err)
	}
	b := &Bucket{Address: a, stall: o.Stall}
	if b.stall <= 0 {
		b.stall = stallAfter
	}
	b.client = s3.NewFromConfig(shared, func(o *s3.Options) {
		if o.BaseEndpoint == nil {
			return
		}
		o.UsePathStyle = true
		if o.Region == "" {
			o.Region = defaultRegion
		}
	})
	if b.client.Options().Region == "" {
		return nil, errors.New("s3: no region: set AWS_REGION, or AWS_ENDPOINT_URL for another server than AWS")
	}
	return b, nil
}

// Put stores an object of size bytes. S3 compares what arrives with the checksum, twice: as that of a
// signed request, which every server verifies, and as that of the object, which it then keeps. The body is read
// again from its start when the SDK retries.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, sum [sha256.Size]byte) error {
	w := b.watch(ctx)
	defer w.stop()
	_, err := b.client.PutObject(w.ctx, &s3.PutObjectInput{Bucket: &b.Bucket, Key: aws.String(b.key(key)),
		Body: &watchedBody{body, w}, ContentLength: &size,
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:]))}, signed(sum))
	return b.explain(w.ctx, key, err)
}

// signed has a request signed with the checksum of its body, which is not read for that.
func signed(sum [sha256.Size]byte) func(*s3.Options) {
	return s3.WithAPIOptions(func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("parleySum",
			func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
			) (middleware.InitializeOutput, middleware.Metadata, error) {
				return next.HandleInitialize(v4.SetPayloadHash(ctx, hex.EncodeToString(sum[:])), in)
			}), middleware.After)
	})
}

// Get returns an object of at most so many bytes. Errors: those of a missing object wrap fs.ErrNotExist.
func (b *Bucket) Get(ctx context.Context, key string, limit int64) ([]byte, error) {
	for n := 1; ; n++ {
		body, cut, err := b.get(ctx, key, limit)
		if !cut || n == readings || ctx.Err() != nil {
			return body, err
		}
	}
}

// get reads an object once; cut says that its body has ended before its end.
func (b *Bucket) get(ctx context.Context, key string, limit int64) (body []byte, cut bool, err error) {
	w := b.watch(ctx)
	defer w.stop()
	out, err := b.client.GetObject(w.ctx, &s3.GetObjectInput{Bucket: &b.Bucket, Key: aws.String(b.key(key))})
	if err != nil {
		return nil, false, b.explain(w.ctx, key, err)
	}
	defer out.Body.Close()
	if n := aws.ToInt64(out.ContentLength); n > limit {
		return nil, false, fmt.Errorf("%s has %d bytes, more than %d", b.URL(key), n, limit)
	}
	buffer := bytes.NewBuffer(make([]byte, 0, aws.ToInt64(out.ContentLength)+bytes.MinRead))
	n, err := buffer.ReadFrom(io.LimitReader(&watchedReader{out.Body, w}, limit+1))
	switch {
	case err != nil:
		return nil, true, b.explain(w.ctx, key, err)
	case n > limit:
		return nil, false, fmt.Errorf("%s has more than %d bytes", b.URL(key), limit)
	}
	return buffer.Bytes(), false, nil
}

// List calls each for every object whose key begins with a prefix, in the order of keys.
func (b *Bucket) List(ctx context.Context, prefix string, each func(Object)) error {
	pages := s3.NewListObjectsV2Paginator(b.client,
		&s3.ListObjectsV2Input{Bucket: &b.Bucket, Prefix: aws.String(b.key(prefix))})
	for pages.HasMorePages() {
		w := b.watch(ctx)
		page, err := pages.NextPage(w.ctx)
		err = b.explain(w.ctx, prefix, err)
		w.stop()
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			each(Object{Key: strings.TrimPrefix(aws.ToString(o.Key), b.key("")), Size: aws.ToInt64(o.Size),
				Changed: aws.ToTime(o.LastModified)})
		}
	}
	return nil
}

// Remove removes an object, which may be missing.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	w := b.watch(ctx)
	defer w.stop()
	_, err := b.client.DeleteObject(w.ctx, &s3.DeleteObjectInput{Bucket: &b.Bucket, Key: aws.String(b.key(key))})
	return b.explain(w.ctx, key, err)
}

// watch is a request that ends when it moves no byte for too long.
type watch struct {
	ctx   context.Context //nolint:containedctx // of the one request that this is
	timer *time.Timer
	after time.Duration
	stop  func()
}

// errStalled ends a request that waits for a server or a network.
var errStalled = errors.New("the connection stands still")

func (b *Bucket) watch(ctx context.Context) *watch {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{ctx: ctx, after: b.stall, timer: time.AfterFunc(b.stall, func() { cancel(errStalled) })}
	w.stop = func() { w.timer.Stop(); cancel(nil) }
	return w
}

func (w *watch) moved() { w.timer.Reset(w.after) }

// watchedBody is what is sent. The SDK rewinds it.
type watchedBody struct {
	io.ReadSeeker
	w *watch
}

func (r *watchedBody) Read(b []byte) (int, error) { r.w.moved(); return r.ReadSeeker.Read(b) }

// watchedReader is what is received.
type watchedReader struct {
	io.Reader
	w *watch
}

func (r *watchedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.w.moved()
	return n, err
}
