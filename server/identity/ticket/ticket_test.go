package ticket_test

import (
	"encoding/base64"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/ticket"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
)

type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time          { return time.UnixMilli(c.now.Load()) }
func (c *clock) advance(d time.Duration) { c.now.Add(d.Milliseconds()) }

func newService(t *testing.T, s store.Store, c *clock, key byte) *ticket.Service {
	t.Helper()
	return testkit.Value(ticket.New(s, []byte(strings.Repeat(string(key), ticket.KeySize)), c.Now))(t)
}

func newFixture(t *testing.T) (*ticket.Service, *clock, store.Store) {
	t.Helper()
	c := &clock{}
	c.now.Store(1_900_000_000_000)
	s := storetest.NewMemory(c.Now)
	return newService(t, s, c, 'k'), c, s
}

func refused(t *testing.T, name string, s *ticket.Service, text string) {
	t.Helper()
	if token, err := s.Redeem(t.Context(), text); token != "" || err != nil {
		t.Errorf("%s: %q, %v", name, token, err)
	}
}

// A ticket opens one stream, in any process of the installation, within half a minute.
func TestTicket(t *testing.T) {
	s, c, rows := newFixture(t)
	text, expires := s.Issue("an access token")
	testkit.Equal(t, "expires", expires.Sub(c.Now()), 30*time.Second)
	if strings.Contains(text, "access") || strings.Contains(text, base64.RawURLEncoding.EncodeToString([]byte("access"))) {
		t.Errorf("the token stands in %q", text)
	}
	another := newService(t, rows, c, 'k')
	c.advance(30*time.Second - time.Millisecond)
	testkit.Equal(t, "token", testkit.Value(another.Redeem(t.Context(), text))(t), "an access token")
	refused(t, "again", another, text)
	refused(t, "again elsewhere", s, text)

	late, _ := s.Issue("token")
	c.advance(30 * time.Second)
	refused(t, "too late", s, late)
}

func TestTicketsOfOthers(t *testing.T) {
	s, c, rows := newFixture(t)
	text, _ := s.Issue("token")
	sealed := testkit.Value(base64.RawURLEncoding.DecodeString(text))(t)
	for i := range sealed { // any byte
		b := append([]byte(nil), sealed...)
		b[i] ^= 1
		refused(t, "changed", s, base64.RawURLEncoding.EncodeToString(b))
	}
	refused(t, "another key", newService(t, rows, c, 'x'), text)
	for name, wrong := range map[string]string{"empty": "", "short": "AAAA", "no base64": "!", "cut": text[:len(text)-4],
		"longer": text + "AAAA", "a token": "eyJhbGciOi.eyJ.x", "huge": strings.Repeat("A", 1<<20)} {
		refused(t, name, s, wrong)
	}
	testkit.Equal(t, "it is still good", testkit.Value(s.Redeem(t.Context(), text))(t), "token")
	if _, err := ticket.New(rows, []byte("short"), c.Now); err == nil {
		t.Error("a key that is too short is taken")
	}
}

// Of many that have one ticket a single one gets a stream.
func TestTicketOfMany(t *testing.T) {
	s, _, _ := newFixture(t)
	text, _ := s.Issue("token")
	var got atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if token, err := s.Redeem(t.Context(), text); err == nil && token == "token" {
				got.Add(1)
			} else if token != "" || err != nil {
				t.Errorf("%q, %v", token, err)
			}
		})
	}
	all.Wait()
	testkit.Equal(t, "streams", got.Load(), 1)
}

// A ticket whose use may be recorded opens nothing, because it is not known to be the first. One whose use is not
// recorded stays good.
func TestTicketWithoutAStore(t *testing.T) {
	_, c, rows := newFixture(t)
	for when, good := range map[faulty.When]bool{faulty.Before: true, faulty.After: false} {
		broken := faulty.New(rows, faulty.Options{Policy: faulty.Script(faulty.Fault{When: when})})
		s := newService(t, broken, c, 'k')
		text, _ := s.Issue("token")
		token, err := s.Redeem(t.Context(), text)
		if token != "" || (err != nil) != good {
			t.Errorf("%v: %q, %v", when, token, err)
		}
		if token, err = s.Redeem(t.Context(), text); (err == nil && token == "token") != good {
			t.Errorf("%v, again: %q, %v", when, token, err)
		}
	}
}
