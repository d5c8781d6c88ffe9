package table

import (
	"slices"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

func TestVisible(t *testing.T) {
	all := UserChat{History: All, JoinedSequence: 5, JoinedVersion: 9}
	since := UserChat{History: SinceJoined, JoinedSequence: 5, JoinedVersion: 9}
	left := UserChat{History: All, JoinedVersion: 9, LeftVersion: 12}
	for _, c := range []struct {
		row               UserChat
		version, sequence int64
		want              bool
	}{
		{all, 1, 1, true}, {all, 20, 10, true}, {since, 8, 0, false}, {since, 9, 0, true}, {since, 7, 5, false},
		{since, 10, 6, true}, {left, 12, 0, true}, {left, 13, 0, false}, {left, 3, 3, true},
	} {
		if got := c.row.Visible(c.version, c.sequence); got != c.want {
			t.Errorf("%+v: Visible(%d, %d) = %v", c.row, c.version, c.sequence, got)
		}
	}
	if !store.Evaluate(IsMember(), all.Item()) || store.Evaluate(IsMember(), left.Item()) ||
		store.Evaluate(IsMember(), nil) {
		t.Error("condition and row disagree on who is a member")
	}
	if !slices.IsSortedFunc(all.Item(), func(a, b store.Attr) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not sorted")
	}
}
