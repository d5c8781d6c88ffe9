package device

import (
	"slices"
	"strings"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// membersPage adds a page of the member list. The whole list is as old as
// its first page, and must not be older than what loading began with.
func (c *chat) membersPage(r *chatv1.ListMembersResponse) {
	if c.pageToken == "" {
		c.pages, c.pagesHead = nil, r.GetHead().GetVersion()
	}
	c.pages = append(c.pages, r.GetMembers()...)
	c.head(r.GetHead())
	c.raise(r.GetHead().GetVersion())
	if c.pageToken = r.GetNextPageToken(); c.pageToken != "" {
		return
	}
	if c.pagesHead >= c.Base {
		c.membersRead(c.pages, c.pagesHead)
	} else {
		c.pause(&Failure{})
	}
	c.pages = nil
}

// page adds a page of messages: the newest, or an older one.
func (c *chat) page(r *messagev1.ListMessagesResponse, older bool) {
	if !older {
		c.load(r.GetHead(), r.GetHead().GetVersion(), r.GetMessages())
	} else {
		if msgs := r.GetMessages(); len(msgs) > 0 {
			c.First = msgs[0].GetSequence()
		}
		for _, msg := range r.GetMessages() {
			c.keep(msg)
		}
	}
	c.HasOlder = r.GetHasMore()
	c.raise(r.GetHead().GetVersion())
	c.changed()
}

// load begins with the newest page of messages, as of a version.
func (c *chat) load(head *chatv1.ChatHead, version int64, messages []*messagev1.Message) {
	c.Loaded, c.Version, c.Base = true, version, version
	c.First = head.GetSequence() + 1
	if len(messages) > 0 {
		c.First = messages[0].GetSequence()
	}
	for _, msg := range messages {
		c.apply(body{message: msg})
	}
	c.head(head)
}

// changes applies an answer of ListChanges.
func (c *chat) changes(after int64, r *messagev1.ListChangesResponse) {
	c.raise(r.GetHead().GetVersion())
	if r.GetReset_() {
		c.restart()
		c.load(r.GetHead(), r.GetVersion(), r.GetMessages())
		c.HasOlder = len(r.GetMessages()) > 0 && c.First > 1
		return
	}
	merged := int64(len(r.GetChanges())) < r.GetVersion()-after
	for _, ch := range r.GetChanges() {
		b := body{message: ch.GetMessage(), membership: ch.GetMembershipChange(), chat: ch.GetChat(), merged: merged}
		if own := b.membership != nil && b.membership.GetUserId() == c.m.cfg.UserID; own && ch.GetVersion() > c.Version {
			c.forgetState()
			if b.membership.GetKind() != messagev1.MembershipChange_KIND_REMOVED {
				// A new membership, which may hide what the old one showed, or a change of
				// role that a removal and an addition may be merged into.
				c.restart()
				return
			}
		}
		c.apply(b)
		if b.membership.GetKind() == messagev1.MembershipChange_KIND_ROLE_CHANGED {
			c.readMembersAgain() // a removal and an addition may be merged into it
		}
	}
	if r.GetVersion() > c.Version {
		c.Version = r.GetVersion()
		if c.KnownAt >= c.Base {
			c.KnownAt = max(c.KnownAt, c.Version)
		}
		c.head(r.GetHead())
	} else if r.GetVersion() <= after { // nothing new, although something newer exists
		c.pause(&Failure{})
	}
	c.changed()
}

// keep adds a message or replaces an older state of it.
func (c *chat) keep(msg *messagev1.Message) {
	i, found := c.find(msg.GetSequence())
	switch {
	case !found:
		c.messages = slices.Insert(c.messages, i, msg)
	case msg.GetVersion() > c.messages[i].GetVersion():
		c.messages[i] = msg
	default:
		return
	}
	c.changedMessages = append(c.changedMessages, msg)
	c.changed()
}

func (c *chat) find(sequence int64) (int, bool) {
	n := len(c.messages)
	if n == 0 || c.messages[n-1].GetSequence() < sequence {
		return n, false
	}
	return slices.BinarySearchFunc(c.messages, sequence,
		func(m *messagev1.Message, s int64) int { return int(m.GetSequence() - s) })
}

// memberChanged keeps a change of the member list.
func (c *chat) memberChanged(mc *messagev1.MembershipChange) {
	i, found := slices.BinarySearchFunc(c.Members, mc.GetUserId(),
		func(m Member, id string) int { return strings.Compare(m.UserID, id) })
	now := Member{UserID: mc.GetUserId(), Role: mc.GetRole(), Version: mc.GetVersion()}
	switch mc.GetKind() {
	case messagev1.MembershipChange_KIND_ADDED:
		now.JoinedAt = mc.GetChangedAt()
	case messagev1.MembershipChange_KIND_REMOVED:
		now.Removed = true
	default:
		if !found || c.Members[i].Removed { // joined and changed in one answer: when is not known
			c.readMembersAgain()
			return
		}
		now.JoinedAt = c.Members[i].JoinedAt
	}
	members := slices.Clone(c.Members)
	if !found {
		members = slices.Insert(members, i, now)
	} else if now.Version > members[i].Version {
		members[i] = now
	}
	c.Members = members
}

// readMembersAgain has the member list read again; one that is being read may be older
// than the reason for it.
func (c *chat) readMembersAgain() {
	c.MembersLoaded, c.membersCall, c.pages, c.pageToken = false, 0, nil, ""
	c.wake()
}

// membersRead applies a member list that is not older than a version. Changes
// that were applied meanwhile win over it by their versions.
func (c *chat) membersRead(list []*chatv1.Member, version int64) {
	known := map[string]Member{}
	for _, m := range c.Members {
		known[m.UserID] = m
	}
	var members []Member
	for _, m := range list {
		now := Member{UserID: m.GetUserId(), Role: m.GetRole(), JoinedAt: m.GetJoinedAt(), Version: m.GetVersion()}
		if old, ok := known[now.UserID]; ok && old.Version > now.Version {
			now = old
		}
		delete(known, now.UserID)
		members = append(members, now)
	}
	for _, old := range known {
		if old.Removed || old.Version > version {
			members = append(members, old)
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.UserID, b.UserID) })
	c.Members, c.MembersLoaded = members, true
	c.changed()
}
