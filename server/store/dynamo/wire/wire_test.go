package wire

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func respond(status int, body string) (*http.Response, error) {
	h := http.Header{"X-Amz-Crc32": {fmt.Sprint(crc32.ChecksumIEEE([]byte(body)))}}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body))}, nil
}

func refuse(kind string) doer {
	return func(*http.Request) (*http.Response, error) {
		return respond(400, `{"__type":"com.amazonaws.dynamodb.v20120810#`+kind+`","message":"text"}`)
	}
}

func client(t *testing.T, d doer, c Config) *Client {
	t.Helper()
	if c.Endpoint == "" {
		c.Endpoint = "http://127.0.0.1:1"
	}
	c.Transport = func(aws.HTTPClient) aws.HTTPClient { return d }
	if c.Sleep == nil {
		c.Sleep = func(context.Context, time.Duration) error { return errors.New("one attempt") }
	}
	cl, err := Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func send(c *Client) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.DB.TransactWriteItems(ctx,
			&dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{{Delete: &types.Delete{
				TableName: aws.String("t"), Key: map[string]types.AttributeValue{"k": &types.AttributeValueMemberS{Value: "v"}},
			}}}})
		return err
	}
}

// What each answer of DynamoDB, and each way of having none, means for a write.
func TestVerdicts(t *testing.T) {
	cancelled := func(codes ...string) doer {
		return func(*http.Request) (*http.Response, error) {
			list := make([]string, len(codes))
			for i, c := range codes {
				list[i] = fmt.Sprintf(`{"Code":%q}`, c)
			}
			return respond(400, `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","CancellationReasons":[`+strings.Join(list, ",")+`]}`)
		}
	}
	broken := func(err error) doer { return func(*http.Request) (*http.Response, error) { return nil, err } }
	for _, c := range []struct {
		name string
		do   doer
		want Class
		err  error
	}{
		{"ProvisionedThroughputExceededException", nil, Throttled, store.ErrThrottled},
		{"ThrottlingException", nil, Throttled, store.ErrThrottled},
		{"RequestLimitExceeded", nil, Throttled, store.ErrThrottled},
		{"TransactionConflictException", nil, Conflicting, store.ErrConflict},
		{"TransactionInProgressException", nil, Ambiguous, store.ErrAmbiguous},
		{"ValidationException", nil, Final, store.ErrInvalid},
		{"ResourceNotFoundException", nil, Final, ErrNoTables},
		{"AccessDeniedException", nil, Final, store.ErrUnavailable},
		{"ExpiredTokenException", nil, Final, store.ErrUnavailable},
		{"UnrecognizedClientException", nil, Final, store.ErrUnavailable},
		{"InvalidSignatureException", nil, Final, store.ErrUnavailable},
		{"MissingAuthenticationTokenException", nil, Final, store.ErrUnavailable},
		{"ReplicatedWriteConflictException", nil, Conflicting, store.ErrConflict},
		{"Throttling", nil, Throttled, store.ErrThrottled},
		{"conditions only", cancelled("None", "ConditionalCheckFailed"), Final, store.ErrUnavailable},
		{"conflict beside a condition", cancelled("ConditionalCheckFailed", "TransactionConflict"), Conflicting,
			store.ErrConflict},
		{"conflict and throttling", cancelled("ThrottlingError", "TransactionConflict"), Conflicting, store.ErrConflict},
		{"throttled item", cancelled("None", "ProvisionedThroughputExceeded", "ConditionalCheckFailed"), Throttled,
			store.ErrThrottled},
		{"service failed", func(*http.Request) (*http.Response,
			error) {
			return respond(500, `{"__type":"InternalServerError"}`)
		}, Ambiguous, store.ErrAmbiguous},
		{"gateway failed", func(*http.Request) (*http.Response, error) { return respond(503, `<html>`) }, Ambiguous,
			store.ErrAmbiguous},
		{"cut answer", func(*http.Request) (*http.Response, error) { return respond(200, `{"Consumed`) }, Ambiguous,
			store.ErrAmbiguous},
		{"reset", broken(syscall.ECONNRESET), Ambiguous, store.ErrAmbiguous},
		{"end of file", broken(io.ErrUnexpectedEOF), Ambiguous, store.ErrAmbiguous},
		{"no connection", broken(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), NotSent, store.ErrUnavailable},
	} {
		do := c.do
		if do == nil {
			do = refuse(c.name)
		}
		cl := client(t, do, Config{})
		v, open, err := cl.Do(t.Context(), true, send(cl))
		if v != c.want || err == nil || open != (c.want == Ambiguous) {
			t.Errorf("%s: %d, %v, %v", c.name, v, open, err)
		}
		if err := FinalError(t.Context(), v, open, err); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
}

// A request that could not be signed was not sent.
func TestUnsigned(t *testing.T) {
	for name, v := range map[string]string{
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "",
		"AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_CONFIG_FILE": "/nonexistent", "AWS_REGION": "eu-central-1",
	} {
		t.Setenv(name, v)
	}
	sent := 0
	cl := client(t, func(*http.Request) (*http.Response, error) {
		sent++
		return respond(200, "{}")
	}, Config{Endpoint: "https://dynamodb.invalid"})
	v, open, err := cl.Do(t.Context(), true, send(cl))
	if v != NotSent || open || sent != 0 || !errors.Is(FinalError(t.Context(), v, open, err), store.ErrUnavailable) {
		t.Fatal(v, open, sent, err)
	}
}

// A process whose clock is an hour off is told so by the service and continues with the
// service's time; a signature that is wrong for another reason is not sent again.
func TestClockSkew(t *testing.T) {
	theirs := time.Now().Add(time.Hour)
	calls := 0
	cl := client(t, func(r *http.Request) (*http.Response, error) {
		calls++
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err != nil {
			return nil, err
		}
		resp, err := respond(200, "{}")
		if at.Before(theirs.Add(-5 * time.Minute)) {
			resp, err = refuse("InvalidSignatureException")(r)
		}
		resp.Header.Set("Date", theirs.UTC().Format(http.TimeFormat))
		return resp, err
	}, Config{Sleep: func(context.Context, time.Duration) error { return nil }})
	for want := 2; want < 4; want++ {
		if _, open, err := cl.Do(t.Context(), false, send(cl)); err != nil || open || calls != want {
			t.Fatalf("%d calls, want %d; open %v, %v", calls, want, open, err)
		}
	}
	calls = 0
	wrong := client(t, func(r *http.Request) (*http.Response, error) {
		calls++
		resp, err := refuse("InvalidSignatureException")(r)
		resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
		return resp, err
	}, Config{Sleep: func(context.Context, time.Duration) error { return nil }})
	if v, open, err := wrong.Do(t.Context(), true, send(wrong)); v != Final || open || err == nil || calls != 1 {
		t.Fatal(v, open, err, calls)
	}
}

// Attempts end and are repeated: with an open outcome only where that does no harm.
func TestAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // an attempt's time is not the machine's
		calls := 0
		hang := func(r *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return respond(200, "{}")
		}
		patient := func(context.Context, time.Duration) error { return nil }
		cl := client(t, hang, Config{Attempt: 5 * time.Second, Sleep: patient})
		hangUps := 0
		cl.closeIdle = func() { hangUps++ }
		if _, open, err := cl.Do(t.Context(), true, send(cl)); err != nil || !open || calls != 2 {
			t.Fatal(open, err, calls)
		}
		calls = 0
		if v, open, err := cl.Do(t.Context(), false, send(cl)); err == nil || v != Ambiguous || !open || calls != 1 {
			t.Fatal(v, open, err, calls)
		}
		if s := cl.Stats(); s.Requests != 3 || s.Lost != 2 || hangUps != 2 {
			t.Fatalf("%+v, %d", s, hangUps)
		}
	})
}

// An attempt that the end of the call cuts short does not hide what the one before it met.
func TestCutAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		met := errors.New("what answers is no DynamoDB")
		calls := 0
		cl := client(t, func(r *http.Request) (*http.Response, error) {
			if calls++; calls == 1 {
				return nil, met
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, Config{Attempt: 5 * time.Second, Sleep: func(context.Context, time.Duration) error { return nil }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if class, open, err := cl.Do(ctx, true, send(cl)); !errors.Is(err, met) || class != Ambiguous || !open || calls != 2 {
			t.Errorf("cut: %v %v %v, %d calls", class, open, err, calls)
		}
		calls = 1 // a service that hangs from the first attempt on is reported as such
		if _, _, err := cl.Do(ctx, true, send(cl)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, met) {
			t.Errorf("hangs: %v", err)
		}
	})
}

// Waits grow, are random, and do not go beyond the end of the call.
func TestPause(t *testing.T) {
	var waits []time.Duration
	cl := client(t, nil, Config{Sleep: func(_ context.Context, d time.Duration) error {
		waits = append(waits, d)
		return nil
	}})
	for n := range 60 {
		if !cl.Backoff(t.Context(), n) {
			t.Fatal(n)
		}
		if limit := min(8*time.Millisecond<<min(n, 10), time.Second); waits[n] < 0 || waits[n] >= limit {
			t.Fatalf("wait %d is %v of %v", n, waits[n], limit)
		}
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if cl.Backoff(late, 0) || len(waits) != 60 {
		t.Fatal("waited past the end")
	}
}

func TestEnds(t *testing.T) {
	cause := errors.New("cause")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	up, stop := context.WithDeadlineCause(t.Context(), time.Now(), errTime)
	defer stop()
	for _, c := range []struct {
		name    string
		ctx     context.Context
		verdict Class
		open    bool
		is, not error
	}{
		{"caller gone, nothing sent", ended, NotSent, false, context.Canceled, store.ErrAmbiguous},
		{"caller gone, outcome open", ended, Ambiguous, true, store.ErrAmbiguous, nil},
		{"caller gone, in the middle", ended, Ambiguous, true, context.Canceled, nil},
		{"time up", up, Throttled, false, store.ErrThrottled, context.DeadlineExceeded},
		{"time up, outcome open", up, Conflicting, true, store.ErrAmbiguous, context.DeadlineExceeded},
		{"out of attempts", t.Context(), Conflicting, false, store.ErrConflict, store.ErrAmbiguous},
	} {
		err := FinalError(c.ctx, c.verdict, c.open, cause)
		if !errors.Is(err, c.is) || (c.not != nil && errors.Is(err, c.not)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	for _, c := range []Config{{}, {Endpoint: "127.0.0.1:8000"}, {Endpoint: "ftp://x"}, {Endpoint: "http://"},
		{Endpoint: "https://x"}} {
		if _, err := Dial(t.Context(), c); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The transport reads a request's body although the SDK has closed its own, and may
// have it again.
func TestBodyOfItsOwn(t *testing.T) {
	theirs := &closable{Reader: strings.NewReader("text")}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:1", theirs)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = 4
	resp, err := ownBody{&http.Client{Transport: tripper(func(r *http.Request) (*http.Response, error) {
		if !theirs.closed || r.ContentLength != 4 {
			t.Errorf("closed: %v, length %d", theirs.closed, r.ContentLength)
		}
		for range 2 {
			b, err := io.ReadAll(r.Body)
			if err != nil || string(b) != "text" {
				t.Errorf("body %q, %v", b, err)
			}
			if r.Body, err = r.GetBody(); err != nil {
				t.Error(err)
			}
		}
		return respond(200, "{}")
	})}}.Do(r)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	theirs.fail = true
	if _, err := (ownBody{&http.Client{Transport: tripper(func(*http.Request) (*http.Response, error) {
		t.Error("sent without a body")
		return respond(200, "{}")
	})}}).Do(r); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
}

type closable struct {
	io.Reader
	closed, fail bool
}

func (c *closable) Read(p []byte) (int, error) {
	if c.fail {
		return 0, io.ErrClosedPipe
	}
	return c.Reader.Read(p)
}

func (c *closable) Close() error {
	c.closed = true
	return nil
}
