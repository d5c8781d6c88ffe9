package view_test

import (
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// What the other person of a direct chat has read is a change of the chat, for that person
// alone, and nobody sees it where the installation tells nobody.
func TestSyncListsWhatTheOtherPersonHasRead(t *testing.T) {
	w := newFixture(t)
	c, err := w.chat.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "bob"})
	w.must(err)
	w.group(table.All, "ann", "bob")
	for range 3 {
		w.send(c.ChatID, "ann", "hello")
	}
	w.advance(time.Hour)
	token := w.sync("ann", "", 0).GetToken()
	w.advance(time.Hour)
	_, err = w.chat.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: c.ChatID, Sequence: 2})
	w.must(err)
	cfg := w.config(generation, 'k')
	cfg.NoReadReceipts = true
	for r, want := range map[*view.Reader]int64{w.reader: 2, w.alone: 2, view.New(cfg): 0} {
		res, err := r.Sync(w.ctx, "ann", &deliveryv1.SyncRequest{Token: token})
		w.must(err)
		testkit.Equal(t, "changed", chatIDs(res.GetOverviews()), []string{c.ChatID})
		testkit.Equal(t, "read by the other", res.GetOverviews()[0].GetState().GetPeerReadSequence(), want)
		o, err := r.Overview(w.ctx, "bob", c.ChatID)
		w.must(err)
		testkit.Equal(t, "what bob is shown", o.GetState().GetPeerReadSequence(), int64(0))
	}
}
