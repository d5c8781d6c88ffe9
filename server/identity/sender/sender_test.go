package sender_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/sender"
	"github.com/parley-chat/parley/server/infra/testkit"
)

var now = time.Date(2030, 3, 1, 9, 30, 0, 0, time.UTC)

func clock() time.Time { return now }

func message(t testing.TB, to string) otp.Message {
	t.Helper()
	return otp.Message{To: testkit.Value(identifier.Parse(to))(t), Code: "042117", Expires: now.Add(5 * time.Minute)}
}

// way is a way that waits until it is let go.
type way struct {
	mu   sync.Mutex
	sent []string
	wait chan struct{}
	err  error
}

func (*way) Kinds() []identifier.Kind { return []identifier.Kind{identifier.Phone} }

func (w *way) Send(ctx context.Context, m otp.Message) error {
	select {
	case <-w.wait:
	case <-ctx.Done():
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, m.Code)
	return w.err
}

// Nobody waits for a way that hangs; what there is no room for is counted, and so is what fails or
// takes too long.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &way{wait: make(chan struct{})}
		var mu sync.Mutex
		failed := map[string]int{}
		q := sender.NewQueue(w, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failed[err.Error()]++
		})
		if q.Takes(identifier.Email) || !q.Takes(identifier.Phone) {
			t.Error("it takes other identifiers than its way")
		}
		done := make(chan struct{})
		go func() { _ = q.Run(ctx, func() {}); close(done) }()
		m := message(t, "+491512345678")
		for range 8 { // under way
			q.Send(m)
		}
		synctest.Wait()
		for range 1024 {
			if !q.Room() {
				t.Fatal("no room")
			}
			q.Send(m)
		}
		if q.Room() {
			t.Error("there is room without an end")
		}
		q.Send(m)
		count := func(of string) int {
			mu.Lock()
			defer mu.Unlock()
			return failed[of]
		}
		testkit.Equal(t, "no room", count(otp.ErrBusy.Error()), 1)
		time.Sleep(46 * time.Second) // the first eight took too long
		testkit.Equal(t, "too late", count(context.DeadlineExceeded.Error()), 8)
		close(w.wait)
		synctest.Wait()
		testkit.Equal(t, "sent", q.Sent(), int64(1024))
		w.mu.Lock()
		w.err = errors.New("refused")
		w.mu.Unlock()
		q.Send(m)
		synctest.Wait()
		testkit.Equal(t, "refused", count("refused"), 1)
		cancel()
		<-done
	})
}

// Codes that expired while a way stood still are not sent when it goes again, and do not keep those
// waiting who ask now; what is under way is given up when its code is.
func TestExpiredCodesAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &way{wait: make(chan struct{})}
		failed := make(chan error, 2000)
		q := sender.NewQueue(w, func(err error) { failed <- err })
		done := make(chan struct{})
		go func() { _ = q.Run(ctx, func() {}); close(done) }()
		m := message(t, "+491512345678")
		for n := range 1032 {
			m.Expires = time.Now().Add(5 * time.Minute)
			if n < 8 { // under way
				m.Expires = time.Now().Add(30 * time.Second)
			}
			q.Send(m)
			if n == 7 {
				synctest.Wait()
			}
		}
		time.Sleep(31 * time.Second)
		testkit.Equal(t, "given up", len(failed), 8)
		time.Sleep(6 * time.Minute)
		m.Expires = time.Now().Add(5 * time.Minute)
		q.Send(m)
		close(w.wait)
		synctest.Wait()
		testkit.Equal(t, "sent", q.Sent(), int64(1))
		testkit.Equal(t, "not sent", len(failed), 1032)
		cancel()
		<-done
	})
}

// What is being sent at the end is sent.
func TestQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &way{wait: make(chan struct{})}
		q := sender.NewQueue(w, func(err error) { t.Error(err) })
		done := make(chan struct{})
		go func() { _ = q.Run(ctx, func() {}); close(done) }()
		q.Send(message(t, "+491512345678"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-done:
			t.Error("it did not wait")
		default:
		}
		close(w.wait)
		<-done
		testkit.Equal(t, "sent", q.Sent(), int64(1))
	})
}

// The log's line has all that a developer needs.
func TestLog(t *testing.T) {
	var text bytes.Buffer
	l := sender.Log{Log: slog.New(slog.NewTextHandler(&text, nil))}
	for _, to := range []string{"ann@example.com", "+491512345678"} {
		testkit.Must(t, l.Send(t.Context(), message(t, to)))
		if line := text.String(); !strings.Contains(line, "code=042117") || !strings.Contains(line, to) ||
			!strings.Contains(line, "expires=2030-03-01T09:35:00Z") {
			t.Error(line)
		}
		text.Reset()
	}
}
