package backend_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/parley-chat/parley/server/backend"
	settings "github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/kafka"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// DynamoDB's first errors are shown in one line without the SDK's layers; others stay.
func TestExplainStore(t *testing.T) {
	t.Parallel()
	at := backend.Tables{Prefix: "p_", Endpoint: "http://h"}
	other := errors.New("something else")
	for says, err := range map[string]error{
		"workers tables apply": fmt.Errorf("x: %w", wire.ErrNoTables),
		"no credentials": errors.New(
			"operation error DynamoDB: GetItem, get identity: get credentials: failed to refresh"),
		"http://h cannot be reached: connection refused": fmt.Errorf("request send failed: %w",
			&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}),
		"http://h is not signed by an authority": fmt.Errorf("request send failed: %w", x509.UnknownAuthorityError{}),
		"something else":                         other,
	} {
		if got := at.Explain(err); !strings.Contains(got.Error(), says) || strings.Contains(got.Error(), "operation error") {
			t.Errorf("%v", got)
		}
	}
	if at.Explain(nil) != nil {
		t.Error("an error without one")
	}
}

// Something else at DynamoDB's endpoint, such as Redis, is reported as that.
func TestNotDynamoDB(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "x")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "y")
	t.Setenv("AWS_REGION", "local")
	var wg sync.WaitGroup
	for name, tt := range map[string]struct{ scheme, answer, says string }{
		"closes":             {"http", "", "is not DynamoDB"},
		"Redis":              {"http", "-ERR unknown command 'POST'\r\n", "is not DynamoDB"},
		"a web page":         {"http", "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", "is not DynamoDB"},
		"a page that is 200": {"http", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "is not DynamoDB"},
		"no TLS":             {"https", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "speaks no TLS"},
		"nothing":            {"http", "silence", "does not answer"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Read(make([]byte, 64<<10))
					if tt.answer == "silence" {
						<-t.Context().Done()
						return
					}
					_, _ = io.WriteString(c, tt.answer)
					// What is closed before it has read the whole request resets the connection, and the
					// client may lose the answer.
					_ = c.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, c)
				}()
			}
		}()
		at := backend.Tables{Prefix: "p_", Endpoint: tt.scheme + "://" + l.Addr().String()}
		wg.Go(func() {
			patience := time.Minute // what answers does so at once, but on a machine that is busy
			if tt.answer == "silence" {
				patience = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tables, err := at.OpenHasty(ctx)
			if err == nil {
				defer tables.Close()
				_, err = tables.Verify(ctx)
			}
			err = at.Explain(err)
			if err == nil || !strings.Contains(err.Error(), l.Addr().String()+" "+tt.says) ||
				strings.Contains(err.Error(), "operation error") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

// What the table of settings says by itself is what the packages say.
func TestDefaultsAgree(t *testing.T) {
	t.Parallel()
	v, err := settings.Declare(settings.Workers, pflag.NewFlagSet("", pflag.ContinueOnError)).Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	if v.DynamoDB.Prefix != tables.DefaultPrefix || v.Registry.Listen != registryapi.DefaultListen ||
		v.Kafka.Replication != kafka.Replication {
		t.Errorf("prefix %q, registry %q, %d replicas", v.DynamoDB.Prefix, v.Registry.Listen, v.Kafka.Replication)
	}
}
