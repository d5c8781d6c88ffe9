package view_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// A page token of the release before, which had another form under the same signature, is
// refused and not read as something else: a list would end early without a word.
func TestPageTokensOfTheReleaseBefore(t *testing.T) {
	w := newFixture(t)
	ids := w.groups(6)
	w.advance(10 * time.Minute)
	start := w.now
	first, err := w.reader.Sync(w.ctx, "ann", &deliveryv1.SyncRequest{PageSize: 2})
	w.must(err)
	last := first.GetOverviews()[1]
	// As the release before made it after the first page.
	body := []byte{1}
	body = binary.BigEndian.AppendUint64(body, uint64(w.now.Add(24*time.Hour).UnixMilli()))
	body = append(body, 1) // full
	body = binary.BigEndian.AppendUint64(body, uint64(start.UnixMilli()))
	body = binary.BigEndian.AppendUint64(body, uint64(last.GetHead().GetChangedAt().AsTime().UnixMilli()))
	body = binary.BigEndian.AppendUint32(body, 0)
	body = binary.BigEndian.AppendUint64(body, 0)
	body = append(body, last.GetChat().GetChatId()...)
	h := hmac.New(sha256.New, bytes.Repeat([]byte{'k'}, 32))
	for _, p := range []string{"page sync", "ann", generation, ""} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	h.Write(body)
	page := base64.RawURLEncoding.EncodeToString(append(body, h.Sum(nil)[:16]...))
	_, err = w.reader.Sync(w.ctx, "ann", &deliveryv1.SyncRequest{PageSize: 2, PageToken: page})
	wantError(t, "a page token of the release before", err, view.ErrInvalidPageToken)
	if len(ids) <= len(first.GetOverviews()) {
		t.Fatal("one page held all chats")
	}
}

// Somebody who arrived in a group's second phase, whose membership begins with the
// creation, is shown as added to whoever knows the creation, also with another role.
func TestRoleOfOneWhoArrived(t *testing.T) {
	w := newFixture(t)
	// 1 chat, 2 bob (phase 2)
	id := w.group(table.All, "ann", "bob")
	// 3
	_, err := w.chat.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Admin})
	w.must(err)
	res := w.changes("ann", id, 1, 0)
	testkit.Equal(t, "after the creation", describe(res.GetChanges())[0], "3:bob added@3")
}
