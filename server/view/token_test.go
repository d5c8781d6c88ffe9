package view_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

func TestToken(t *testing.T) {
	w := newFixture(t)
	at := w.clock()
	token := w.reader.NewToken("bob", from(at))
	got, err := w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	testkit.Equal(t, "time", got.At.UnixMilli(), at.Add(-view.Overlap).UnixMilli())
	testkit.Equal(t, "full", got.Full, false)

	w.advance(80*24*time.Hour - view.Overlap)
	got, err = w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	testkit.Equal(t, "80 days", got.Full, false)
	w.advance(time.Millisecond)
	got, err = w.reader.Token(w.ctx, "bob", token)
	w.must(err)
	testkit.Equal(t, "older", got.Full, true)
	testkit.Equal(t, "sync", w.sync("bob", token, 0).GetFull(), true)

	got, err = w.reader.Token(w.ctx, "bob", w.reader.NewToken("bob", from(w.clock().Add(time.Hour))))
	w.must(err)
	testkit.Equal(t, "of the future", got.Full, true)

	// A restore changes the generation, not the key.
	got, err = w.newReader(strings.Repeat("g", view.MaxGeneration), 'k').Token(w.ctx, "bob",
		w.reader.NewToken("bob", from(w.clock())))
	w.must(err)
	testkit.Equal(t, "other generation", got.Full, true)
	long := w.newReader(strings.Repeat("g", view.MaxGeneration), 'k').NewToken("bob", from(w.clock()))
	if len(long) > 128 {
		t.Fatalf("a token has up to %d bytes", len(long))
	}
	got, err = w.reader.Token(w.ctx, "bob", long)
	w.must(err)
	testkit.Equal(t, "other generation", got.Full, true)
}

// line is a history whose earlier generation had seven commits.
type line struct {
	store.Line
	shown int64
}

func (l line) Shown() int64 { return l.shown }
func (l line) Holds(generation string, commit int64) bool {
	return generation == "gen_B" || generation == "gen_A" && commit <= 7
}

// A token is good in later generations, unless it stands for what they lack.
func TestTokensInHistory(t *testing.T) {
	w := newFixture(t)
	after := w.config(generation, 'k')
	after.History = line{Line: "gen_B", shown: 100}
	for shown, full := range map[int64]bool{7: false, 8: true} {
		before := w.config(generation, 'k')
		before.History = line{Line: generation, shown: shown}
		got, err := view.New(after).Token(w.ctx, "bob", view.New(before).NewToken("bob", from(w.clock())))
		w.must(err)
		testkit.Equal(t, fmt.Sprint("full after ", shown), got.Full, full)
	}
}

func TestForgedTokens(t *testing.T) {
	w := newFixture(t)
	token := w.reader.NewToken("bob", from(w.clock()))
	for name, bad := range map[string]string{
		"empty":      "",
		"other user": w.reader.NewToken("ann", from(w.clock())),
		"other key":  w.newReader(generation, 'x').NewToken("bob", from(w.clock())),
		"not base64": "!" + token,
		"line feed":  token[:8] + "\n" + token[8:],
		"padding":    token + "=",
		"doubled":    token + token,
		"other purpose": func() string {
			w.groups(2)
			_, next, err := w.chatsPage(w.reader, "bob", 1, "")
			w.must(err)
			return next
		}(),
	} {
		_, err := w.reader.Token(w.ctx, "bob", bad)
		wantError(t, name, err, view.ErrInvalidToken)
	}
	for i := range len(token) {
		_, err := w.reader.Token(w.ctx, "bob", token[:i])
		wantError(t, "truncated", err, view.ErrInvalidToken)
		for bit := range 8 {
			b := []byte(token)
			b[i] ^= 1 << bit
			_, err := w.reader.Token(w.ctx, "bob", string(b))
			wantError(t, "bit flipped", err, view.ErrInvalidToken)
		}
	}
	_, err := w.reader.Sync(w.ctx, "ann", &deliveryv1.SyncRequest{Token: token})
	wantError(t, "sync with another user's token", err, view.ErrInvalidToken)
}

// Page tokens are bound to the caller, the kind of list, the query and the
// generation, and expire (S-19).
func TestSec_S_19_PageTokens(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(3)
	w.add(ids[0], "ann", "cid")
	sync, err := w.reader.Sync(w.ctx, "bob", &deliveryv1.SyncRequest{PageSize: 1})
	w.must(err)
	_, chats, err := w.chatsPage(w.reader, "bob", 1, "")
	w.must(err)
	res, err := w.reader.Members(w.ctx, "bob", ids[0], 1, "")
	w.must(err)
	members := res.GetNextPageToken()
	for _, token := range []string{sync.GetNextPageToken(), chats, members} {
		if token == "" || len(token) > 512 {
			t.Fatalf("page token of %d bytes", len(token))
		}
	}

	use := map[string]func(r *view.Reader, user, token string) error{
		"sync": func(r *view.Reader, user, token string) error {
			_, err := r.Sync(w.ctx, user, &deliveryv1.SyncRequest{PageToken: token})
			return err
		},
		"sync with token": func(r *view.Reader, user, token string) error {
			_, err := r.Sync(w.ctx, user, &deliveryv1.SyncRequest{Token: r.NewToken(user, from(w.clock())), PageToken: token})
			return err
		},
		"chats": func(r *view.Reader, user, token string) error {
			_, _, err := w.chatsPage(r, user, 1, token)
			return err
		},
		"members": func(r *view.Reader, user, token string) error {
			_, err := r.Members(w.ctx, user, ids[0], 1, token)
			return err
		},
		"members of another chat": func(r *view.Reader, user, token string) error {
			_, err := r.Members(w.ctx, user, ids[1], 1, token)
			return err
		},
	}
	tokens := map[string]string{"sync": sync.GetNextPageToken(), "chats": chats, "members": members}
	for of, token := range tokens {
		for at, f := range use {
			err := f(w.reader, "bob", token)
			if at == of {
				w.must(err)
			} else {
				wantError(t, of+" used for "+at, err, view.ErrInvalidPageToken)
			}
			wantError(t, "of another user", f(w.reader, "ann", token), view.ErrInvalidPageToken)
			wantError(t, "of another generation", f(w.newReader("gen_B", 'k'), "bob", token), view.ErrInvalidPageToken)
			wantError(t, "garbage", f(w.reader, "bob", token+"A"), view.ErrInvalidPageToken)
		}
	}
	w.advance(24 * time.Hour)
	for of, token := range tokens {
		w.must(use[of](w.reader, "bob", token))
	}
	w.advance(time.Millisecond)
	for of, token := range tokens {
		wantError(t, "expired", use[of](w.reader, "bob", token), view.ErrInvalidPageToken)
	}
}

// No string makes a token, and no string makes a reader fail otherwise.
func FuzzTokens(f *testing.F) {
	w := newFixture(f)
	// The seeds come from one process and are tried in others, whose chats have other ids: there they must be wrong.
	cfg := w.config(generation, 'k')
	cfg.TokenKey = []byte(rand.Text() + rand.Text())[:view.KeySize]
	w.reader = view.New(cfg)
	id := w.group(table.All, "ann", "bob")
	w.group(table.All, "ann", "bob")
	token := w.reader.NewToken("bob", from(w.clock()))
	_, page, err := w.chatsPage(w.reader, "bob", 1, "")
	w.must(err)
	res, err := w.reader.Members(w.ctx, "bob", id, 1, "")
	w.must(err)
	for _, s := range []string{"", "A", token, token[:20], page, res.GetNextPageToken(), strings.Repeat("A", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := w.reader.Token(w.ctx, "bob", s); s != token {
			wantError(t, "token", err, view.ErrInvalidToken)
		}
		if s == "" {
			return
		}
		if _, _, err := w.chatsPage(w.reader, "bob", 1, s); s != page {
			wantError(t, "chats", err, view.ErrInvalidPageToken)
		}
		if _, err := w.reader.Sync(w.ctx, "bob", &deliveryv1.SyncRequest{PageToken: s}); err != nil {
			wantError(t, "sync", err, view.ErrInvalidPageToken)
		}
		if _, err := w.reader.Members(w.ctx, "bob", id, 1, s); s != res.GetNextPageToken() {
			wantError(t, "members", err, view.ErrInvalidPageToken)
		}
	})
}

// Two clocks at their limits, a plan sent at its last moment, a call that takes all of
// its time: what becomes visible after a token was made, has a stamp that the token
// does not hide.
func TestOverlapCoversTheLimits(t *testing.T) {
	const writersClock, readersClock, age, call = -20, +20, 20, 20 // seconds
	visible := age + call                                          // the stamp was taken at 0
	stamp, read := 0+writersClock, visible+readersClock
	if need := time.Duration(read-stamp) * time.Second; need != 80*time.Second || view.Overlap < need+10*time.Second {
		t.Errorf("the overlap is %s, needed are %s and a margin", view.Overlap, need)
	}
	if view.Overlap > 2*time.Minute {
		t.Errorf("the overlap is %s: each resumption would repeat all that changed in it", view.Overlap)
	}
}
