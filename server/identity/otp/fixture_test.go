package otp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

// fixture is a service over a store in memory, with a clock that is set and the codes that
// people get.
type fixture struct {
	*otp.Service
	t     *testing.T
	store store.Store

	mu     sync.Mutex
	now    time.Time
	sent   []otp.Message
	events map[securitylog.Kind]int
	full   bool
	nobody bool // identifiers are not welcome
	limits limits
}

type limits struct {
	retry time.Duration
	err   error
}

func (f *fixture) clock() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
}

// outbox is the fixture as the way to people.
type outbox struct{ *fixture }

func (o outbox) Takes(k identifier.Kind) bool { return k == identifier.Email }
func (o outbox) Room() bool                   { return !o.full }
func (o outbox) Send(m otp.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, m)
}

// AllowCode and AllowAttempt make the fixture a limiter.
func (f *fixture) AllowCode(context.Context, string) (time.Duration, error) {
	return f.limits.retry, f.limits.err
}

func (f *fixture) AllowAttempt(context.Context, string) (time.Duration, error) {
	return f.limits.retry, f.limits.err
}

// service is a service of another process, over a store and with a pepper.
func (f *fixture) service(s store.Store, pepper byte) *otp.Service {
	f.t.Helper()
	return testkit.Value(otp.New(otp.Config{Store: s, Clock: f.clock,
		Pepper: []byte(strings.Repeat(string(pepper), otp.PepperSize)), Outbox: outbox{f}, Limiter: f,
		Welcome: func(context.Context, identifier.Identifier) (bool, error) { return !f.nobody, nil },
		Record: func(_ context.Context, e securitylog.Event) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.events[e.Kind]++
		}}))(f.t)
}

func newFixture(t *testing.T, wrap ...func(store.Store) store.Store) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_900_000_000, 0), events: map[securitylog.Kind]int{}}
	f.store = dynamotest.Store(t, f.clock)
	own := f.store
	for _, w := range wrap {
		own = w(own)
	}
	f.Service = f.service(own, 'p')
	return f
}

func ann(t testing.TB) identifier.Identifier {
	t.Helper()
	return testkit.Value(identifier.Parse("ann@example.com"))(t)
}

// request asks for a code and returns it with the request's id.
func (f *fixture) request() (id, code string) {
	f.t.Helper()
	r := testkit.Value(f.Request(f.t.Context(), ann(f.t), "192.0.2.0/24"))(f.t)
	f.mu.Lock()
	defer f.mu.Unlock()
	return r.ID, f.sent[len(f.sent)-1].Code
}

func nothing(context.Context, *store.ConditionError) ([]store.Write, error) { return nil, nil }

func (f *fixture) verify(id, code string) error {
	f.t.Helper()
	return f.Verify(f.t.Context(), ann(f.t), id, code, "192.0.2.0/24", nothing)
}

// other is a code that is not the given one.
func other(code string) string {
	if code == "123456" {
		return "123457"
	}
	return "123456"
}

func (f *fixture) refused(what string, err error) {
	f.t.Helper()
	if !errors.Is(err, otp.ErrCode) {
		f.t.Errorf("%s: %v", what, err)
	}
}

func (f *fixture) often(what string, err error, retry time.Duration) {
	f.t.Helper()
	var often *otp.TooOften
	if !errors.As(err, &often) || often.Retry != retry {
		f.t.Errorf("%s: %v, %+v; expected to wait %v", what, err, often, retry)
	}
}

func (f *fixture) rows() (list []store.Row) {
	f.t.Helper()
	for row, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.OTPRequests, Segments: 1}) {
		testkit.Must(f.t, err)
		list = append(list, row)
	}
	return list
}

// codeRow is the one row that has or had a code.
func (f *fixture) codeRow() (code store.Row) {
	f.t.Helper()
	n := 0
	for _, row := range f.rows() {
		if row.Item.Get("request").Str() != "" {
			code = row
			n++
		}
	}
	testkit.Equal(f.t, "rows with a code", n, 1)
	return code
}

// askFrom asks for a code from a network.
func (f *fixture) askFrom(network string) (id, code string, err error) {
	f.t.Helper()
	before := len(f.sent)
	r, err := f.Request(f.t.Context(), ann(f.t), network)
	if err == nil {
		code = f.sent[before].Code
	}
	return r.ID, code, err
}
