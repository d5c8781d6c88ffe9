package signin_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/identity/signin"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded"
)

// codesByAddress is a way to people that keeps what they get.
type codesByAddress struct{ sync.Map }

func (*codesByAddress) Takes(identifier.Kind) bool { return true }
func (*codesByAddress) Room() bool                 { return true }
func (c *codesByAddress) Send(m otp.Message)       { c.Store(m.To.Value(), m.Code) }

// revokeNothing is a revoker of sessions that nobody ends.
type revokeNothing struct{}

func (revokeNothing) RevokeSession(context.Context, string, time.Time) error         { return nil }
func (revokeNothing) RevokeUser(context.Context, string, time.Time, time.Time) error { return nil }

// BenchmarkSignIn measures durable sign-ins and refreshes per second on an embedded store, with
// signed access tokens, by 64 callers at a time: new users, who ask for a code and use it, and
// sessions that are refreshed.
func BenchmarkSignIn(b *testing.B) {
	st := testkit.Value(embedded.Open(embedded.Options{Dir: b.TempDir()}))(b)
	defer func() { _ = st.Close() }()
	key := testkit.Value(auth.LoadKey(b.TempDir()))(b)
	record := func(context.Context, securitylog.Event) {}
	var ids atomic.Int64
	pepper, codes := make([]byte, 32), &codesByAddress{}
	sessions := testkit.Value(session.New(session.Config{Store: st, Clock: time.Now, Pepper: pepper, Record: record,
		Revoker: revokeNothing{}, Issue: func(user, id string, now time.Time) (string, error) {
			return key.IssueFor(user, id, now, session.AccessTime)
		}}))(b)
	service := testkit.Value(signin.New(signin.Config{Store: st, Clock: time.Now, Pepper: pepper, Outbox: codes,
		SignUp: true, Sessions: sessions, Record: record,
		NewID: func(prefix string) string { return fmt.Sprint(prefix, ids.Add(1)) }}))(b)
	signIn := func(b *testing.B, n int64) {
		address := fmt.Sprintf("user%d@example.com", n)
		r, err := service.RequestCode(b.Context(), address, "")
		if err != nil {
			b.Error(err)
			return
		}
		code, _ := codes.LoadAndDelete(address)
		proof := signin.Proof{Identifier: address, Request: r.ID, Code: code.(string)}
		if _, _, err := service.WithCode(b.Context(), proof); err != nil {
			b.Error(err)
		}
	}
	var users atomic.Int64
	b.Run("new users", func(b *testing.B) {
		together(b, func() { signIn(b, users.Add(1)) })
	})
	b.Run("refresh", func(b *testing.B) {
		tokens := make(chan string, b.N)
		for range b.N {
			proof := session.Proof{Hash: sha256.Sum256([]byte(rand.Text())), Until: time.Now().Add(time.Minute)}
			tokens <- testkit.Value(sessions.Open(b.Context(), fmt.Sprint("user", users.Add(1)), "", proof))(b).Refresh
		}
		b.ResetTimer()
		together(b, func() {
			if _, err := sessions.Refresh(b.Context(), <-tokens); err != nil {
				b.Error(err)
			}
		})
	})
}

// together runs b.N operations by 64 callers.
func together(b *testing.B, operation func()) {
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				operation()
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "per_s")
}
