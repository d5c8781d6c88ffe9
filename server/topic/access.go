package topic

import (
	"context"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Caller is the principal of a call.
type Caller struct {
	Principal string // subject of the token
	Operator  bool   // may do everything
	Creator   bool   // may make topics
}

// Roles, and any of them.
const (
	anyRole    = topicv1.Role_ROLE_UNSPECIFIED
	publisher  = topicv1.Role_ROLE_PUBLISHER
	subscriber = topicv1.Role_ROLE_SUBSCRIBER
	admin      = topicv1.Role_ROLE_ADMIN
)

// noGroup is asked for by calls that name no group.
const noGroup = ""

// allowed reports whether a caller has a role in a topic, or another one that includes
// it; of subscribers, for a group, unless that is noGroup. A role in a topic is one in that of
// its dead letters, too, for the same groups. Topics that show all chats operators alone
// administer.
func (s *Service) allowed(c Caller, t *storage.Topic, want topicv1.Role, group string) bool {
	if c.Operator {
		return true
	}
	if want == admin && s.engine.Sources.ShowChats(t.Name) {
		return false
	}
	if has(c, t, want, group) {
		return true
	}
	parent, ok := strings.CutSuffix(t.Name, storage.DeadLetterSuffix)
	if !ok {
		return false
	}
	of := s.engine.Catalog.Topic(parent)
	return of != nil && has(c, of, want, group)
}

func has(c Caller, t *storage.Topic, want topicv1.Role, group string) bool {
	b, ok := t.View().Bindings[c.Principal]
	if !ok || want != anyRole && b.Role != want && b.Role != admin {
		return false
	}
	return group == noGroup || b.Covers(group)
}

// find returns a topic in which the caller has a role. To callers who may not know
// whether there is such a topic, one that there is not is refused like another's. Calls that
// name a group use findGroup.
func (s *Service) find(c Caller, name string, want topicv1.Role) (*storage.Topic, error) {
	return s.findFor(c, name, want, noGroup)
}

// findGroup returns a topic in which the caller may use a group. It is the one place that
// decides so: each call that names a group, or attaches to one, begins with it. Calls on a
// session need the session, which its principal alone has, and which bind ends.
func (s *Service) findGroup(c Caller, name, group string) (*storage.Topic, error) {
	if group == noGroup {
		return nil, refusal.New(refusal.InvalidArgument, "the call names no group")
	}
	return s.findFor(c, name, subscriber, group)
}

func (s *Service) findFor(c Caller, name string, want topicv1.Role, group string) (*storage.Topic, error) {
	t := s.engine.Catalog.Topic(name)
	if t == nil || t.View().Deleting {
		if c.Operator || c.Creator {
			return nil, refusal.New(refusal.TopicNotFound, "there is no topic %.255q", name)
		}
		return nil, refusal.Forbidden(name)
	}
	switch {
	case s.allowed(c, t, want, group):
		return t, nil
	case group != noGroup && s.allowed(c, t, want, noGroup):
		return nil, refusal.ForbiddenGroup(name, group)
	}
	return nil, refusal.Forbidden(name)
}

// sees reports whether a caller may know about a group of a topic in which it has a role.
func (s *Service) sees(c Caller, t *storage.Topic, group string) bool {
	return s.allowed(c, t, subscriber, group) || s.allowed(c, t, publisher, noGroup)
}

// audited runs an administrative call between its two rows.
func (s *Service) audited(ctx context.Context, c Caller, call string, request proto.Message, do func() error) error {
	return s.auditedWith(ctx, c, call, request, func() (string, error) { return "", do() })
}

// auditedWith is audited of a call whose second row says what it did.
func (s *Service) auditedWith(
	ctx context.Context, c Caller, call string, request proto.Message, do func() (result string, err error),
) error {
	text, err := protojson.Marshal(request)
	if err != nil {
		return err
	}
	end, err := s.cfg.Audit(ctx, c.Principal, call, string(text))
	if err != nil {
		return err
	}
	result, err := do()
	if err != nil {
		end("failed", reason(err))
		return err
	}
	end("ok", result)
	return nil
}

// reason is what the record of a call says about its failure.
func reason(err error) string {
	if r, ok := refusal.Of(err); ok {
		return string(r.Reason)
	}
	return "INTERNAL"
}
