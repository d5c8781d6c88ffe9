package outbox

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

func failed(w store.Write) store.Write {
	w.Item = store.NewItem(append(w.Item, store.Attr{Name: table.AttrLastError, Value: store.String("bad")},
		store.Attr{Name: table.AttrAttempts, Value: store.Int(3)})...)
	return w
}

// An event's status follows from the rows that announce it (EV66): new with a row, failed
// with one that has an error, published without one. A row that cannot be read may announce
// what no other row does.
func TestStandings(t *testing.T) {
	key := func(w store.Write) store.Key { return w.Key }
	fresh := func(w store.Write) Standing { return Standing{Status: New, Row: key(w)} }
	bad := func(w store.Write) Standing {
		return Standing{Status: Failed, Row: key(w), Attempts: 3, LastError: "bad"}
	}
	again := func(s Standing) Standing { s.Replay = true; return s }
	first := func(s Standing, w store.Write) Standing { s.Row = key(w); return s }
	published := Standing{Status: Published}
	lost := unreadable("nonsense")
	for name, tt := range map[string]struct {
		rows []store.Write
		want [5]Standing // of versions 1 to 5; a row announces two
	}{
		"nothing": {nil, [5]Standing{published, published, published, published, published}},
		"new": {[]store.Write{row(2, false)},
			[5]Standing{published, fresh(row(2, false)), fresh(row(2, false)), published, published}},
		"failed, and new behind it": {[]store.Write{failed(row(2, false)), row(4, false)},
			[5]Standing{published, bad(row(2, false)), bad(row(2, false)), fresh(row(4, false)), fresh(row(4, false))}},
		"once more": {[]store.Write{row(4, true)},
			[5]Standing{published, published, published, again(fresh(row(4, true))), again(fresh(row(4, true)))}},
		"once more and new": {[]store.Write{row(4, true), row(4, false)},
			[5]Standing{published, published, published, fresh(row(4, false)), fresh(row(4, false))}},
		"two rows, one failed": {[]store.Write{row(3, false), failed(row(4, false))},
			[5]Standing{published, published, fresh(row(3, false)), first(bad(row(4, false)), row(3, false)),
				bad(row(4, false))}},
		"unreadable": {[]store.Write{row(2, false), failed(lost)},
			[5]Standing{bad(lost), fresh(row(2, false)), fresh(row(2, false)), bad(lost), bad(lost)}},
	} {
		t.Run(name, func(t *testing.T) {
			st := storetest.NewMemory(time.Now)
			if len(tt.rows) > 0 {
				if err := st.BatchWrite(t.Context(), tt.rows); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Standings(t.Context(), st, chat, []int64{1, 2, 3, 4, 5})
			if err != nil || [5]Standing(got) != tt.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
	// Before the relay has recorded it, an unreadable row has failed for a reason of its own.
	st := storetest.NewMemory(time.Now)
	if err := st.BatchWrite(t.Context(), []store.Write{lost}); err != nil {
		t.Fatal(err)
	}
	got, err := Standings(t.Context(), st, chat, []int64{7})
	if err != nil || got[0].Status != Failed || got[0].LastError == "" || got[0].Row != lost.Key {
		t.Errorf("%+v, %v", got, err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Standings(t.Context(), st, chat, []int64{7}); err == nil {
		t.Error("a store that is closed has standings")
	}
}
