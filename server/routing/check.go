package routing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/infra/wait"
)

// retryPause is between attempts to reach Redis for the first time.
const retryPause = 250 * time.Millisecond

// temporary is an ErrUnavailable with a text for operators.
type temporary struct{ error }

func (temporary) Is(target error) bool { return target == ErrUnavailable }

// Check runs each kind of command that this package sends to Redis once, under the
// prefix, so that wrong settings and missing permissions show at the start. It retries
// until ctx ends where that may help. Errors are one line that says what to check; they
// are ErrUnavailable if more time may help.
func (r *Redis) Check(ctx context.Context) error {
	err, final := wait.UntilReady(ctx, retryPause, r.runAll, r.explain)
	if err != nil && !final {
		return temporary{err}
	}
	return err
}

// errCluster says that the server is a node of a cluster, which the client does not expect.
var errCluster = errors.New("MOVED elsewhere")

// runAll runs each kind of command on a key that expires by itself.
func (r *Redis) runAll(ctx context.Context) error {
	key, tokens, channel := r.prefix+"check", r.prefix+"check-tokens", r.channel(0)
	if single, ok := r.c.(*redis.Client); ok {
		// A server that is no cluster, or refuses the command, answers with an error.
		if slots, err := single.Do(ctx, "cluster", "slots").Slice(); err == nil && len(slots) > 0 {
			return errCluster
		}
	}
	for _, f := range []func() error{
		func() error { return r.c.Ping(ctx).Err() },
		func() error { return r.c.Set(ctx, key, "x", time.Second).Err() },
		func() error { return r.c.Get(ctx, key).Err() },
		func() error { return r.c.PExpire(ctx, key, time.Second).Err() },
		func() error { return r.c.Del(ctx, key).Err() }, // first of all by itself: a script's error does not name it
		func() error { return r.c.Eval(ctx, releaseScript, []string{key}, "x").Err() },
		func() error { return r.c.SAdd(ctx, key, "x").Err() },
		func() error { return r.c.SMembers(ctx, key).Err() },
		func() error { return r.c.SRem(ctx, key, "x").Err() },
		func() error { return r.c.HSetNX(ctx, tokens, "x", "x").Err() },
		func() error { return r.c.HSet(ctx, tokens, "x", "x").Err() },
		func() error { return r.c.HMGet(ctx, tokens, "x").Err() },
		func() error { return r.c.PExpire(ctx, tokens, time.Second).Err() },
		func() error { return r.c.Time(ctx).Err() },
		func() error { return r.c.Publish(ctx, channel, "").Err() },
		func() error {
			sub := r.c.Subscribe(ctx, r.channel(0))
			defer sub.Close()
			_, err := sub.Receive(ctx)
			return err
		},
	} {
		// Processes that start at once share the key: one may find it absent, or of another type.
		if err := f(); err != nil && !absent(err) && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
			return err
		}
	}
	return nil
}

// explain returns one line for the operator about an error of the first connection; final
// says that a retry cannot help.
func (r *Redis) explain(err error) (clear error, final bool) {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		op        *net.OpError
	)
	text := err.Error()
	answered := func(words ...string) bool {
		for _, w := range words {
			if strings.HasPrefix(text, w) {
				return true
			}
		}
		return false
	}
	at := r.addr
	switch {
	case strings.Contains(text, "all sentinels specified") && strings.Contains(text, "NOAUTH"),
		strings.Contains(text, "all sentinels specified") && strings.Contains(text, "WRONGPASS"):
		return fmt.Errorf("redis: the sentinels at %s refuse the user or the password: look at sentinel_user and PARLEY_REDIS_SENTINEL_PASSWORD", at), true
	case strings.Contains(text, "all sentinels specified") && strings.HasSuffix(text, "redis: nil"):
		return fmt.Errorf("redis: the sentinels at %s know no master of that name", at), true
	case answered("WRONGPASS"):
		return fmt.Errorf("redis: %s refuses the user or the password: look at redis and PARLEY_REDIS_PASSWORD", at), true
	case answered("NOAUTH"), strings.Contains(text, "without any password configured"):
		return fmt.Errorf("redis: %s wants a user and a password, or has none: look at redis and PARLEY_REDIS_PASSWORD", at),
			true
	case answered("NOPERM"):
		return fmt.Errorf("redis: the user lacks a right (%s); `workers redis acl` prints what it needs",
			strings.TrimPrefix(text, "NOPERM ")), true
	case strings.Contains(text, "cluster support disabled"):
		return fmt.Errorf("redis: %s is no cluster: give one host, and not cluster=true", at), true
	case answered("MOVED", "CROSSSLOT"):
		return fmt.Errorf("redis: %s is a cluster: add ?cluster=true to its URL", at), true
	case answered("READONLY"):
		return fmt.Errorf("redis: %s is a replica, which takes no writes: give the primary, or sentinels with master=NAME",
			at), false
	case answered("MISCONF"), answered("OOM"), answered("LOADING"), answered("CLUSTERDOWN"), answered("MASTERDOWN"):
		return fmt.Errorf("redis: %s: %s", at, text), false
	case errors.As(err, &authority):
		return fmt.Errorf("redis: the certificate of %s is not signed by an authority in redis-ca", at), true
	case errors.As(err, &host), errors.As(err, &invalid):
		return fmt.Errorf("redis: the certificate of %s is not good: %w", at, err), true
	case strings.Contains(text, "remote error: tls"):
		return fmt.Errorf("redis: %s refuses this process's certificate or TLS version: %w", at, err), true
	case errors.As(err, &record):
		return fmt.Errorf("redis: %s does not speak TLS: use redis:// instead of rediss://, or take its other port", at), true
	case errors.Is(err, io.EOF), strings.Contains(text, "connection reset"):
		return fmt.Errorf("redis: %s ends the connection at once: does it want TLS (rediss://), or not?", at), false
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("redis: %s cannot be reached: %w", at, op.Err), false
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &op) && op.Timeout():
		if r.tls {
			return fmt.Errorf("redis: %s does not answer; does it speak TLS (rediss://)?", at), false
		}
		return fmt.Errorf("redis: %s does not answer", at), false
	}
	return fmt.Errorf("redis: %s: %s", at, strings.TrimPrefix(text, "redis: ")), false
}
