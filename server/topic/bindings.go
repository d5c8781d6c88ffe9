package topic

import (
	"context"
	"slices"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const maxBindings = 1000 // of a topic

// Bindings returns a topic's bindings by principal.
func (s *Service) Bindings(_ context.Context, c Caller, topic string) ([]*topicv1.Binding, error) {
	t, err := s.find(c, topic, admin)
	if err != nil {
		return nil, err
	}
	var list []*topicv1.Binding
	for principal, b := range t.View().Bindings {
		list = append(list, &topicv1.Binding{Principal: principal, Role: b.Role, Groups: b.Groups})
	}
	slices.SortFunc(list, func(a, b *topicv1.Binding) int { return strings.Compare(a.Principal, b.Principal) })
	return list, nil
}

// SetBinding gives a principal a role. Sessions that the role does not allow end with
// TOPIC_FORBIDDEN.
func (s *Service) SetBinding(ctx context.Context, c Caller, r *topicv1.SetBindingRequest) error {
	t, err := s.find(c, r.GetTopic(), admin)
	if err != nil {
		return err
	}
	if len(r.GetGroups()) > 0 && r.GetRole() != subscriber {
		return refusal.New(refusal.InvalidArgument,
			"groups limit the role subscriber: a publisher uses none, and an administrator all")
	}
	binding := &storage.Binding{Role: r.GetRole(), Groups: r.GetGroups()}
	return s.audited(ctx, c, "SetBinding", r, func() error { return s.bind(ctx, c, t, r.GetPrincipal(), binding) })
}

// RemoveBinding takes a principal's role; its sessions end with TOPIC_FORBIDDEN.
func (s *Service) RemoveBinding(ctx context.Context, c Caller, r *topicv1.RemoveBindingRequest) error {
	t, err := s.find(c, r.GetTopic(), admin)
	if err != nil {
		return err
	}
	return s.audited(ctx, c, "RemoveBinding", r, func() error { return s.bind(ctx, c, t, r.GetPrincipal(), nil) })
}

// bind sets or, nil, removes a principal's binding. The deciding bindings are read again under
// the topic's lock: two administrators may remove each other at once. Then the second call finds
// that its caller is no administrator any more, or that it would remove the last one.
func (s *Service) bind(ctx context.Context, c Caller, t *storage.Topic, principal string, b *storage.Binding) error {
	defer t.Changing().End()
	v := t.View()
	if v.Deleting || !s.allowed(c, t, admin, noGroup) {
		return refusal.Forbidden(t.Name)
	}
	if _, ok := v.Bindings[principal]; !ok && b != nil && len(v.Bindings) >= maxBindings {
		return refusal.New(refusal.TooMany, "topic %q has %d bindings", t.Name, maxBindings)
	}
	if s.lastAdmin(t, principal) && (b == nil || b.Role != admin) {
		return refusal.New(refusal.LastAdmin,
			"%.255q is the last administrator of topic %q: make another principal one first", principal, t.Name)
	}
	if err := s.engine.Catalog.Bind(ctx, t, principal, b); err != nil {
		return err
	}
	for _, o := range s.sessionsOf(principal) {
		o.endUnlessAllowed()
	}
	return nil
}

// lastAdmin reports whether a principal is the only administrator that a topic has. A topic that
// an operator made may have none. The administrators of a topic administer its dead letters, and
// operators alone administer topics that show all chats: of these none is the last.
func (s *Service) lastAdmin(t *storage.Topic, principal string) bool {
	if strings.HasSuffix(t.Name, storage.DeadLetterSuffix) || s.engine.Sources.ShowChats(t.Name) {
		return false
	}
	bindings := t.View().Bindings
	if bindings[principal].Role != admin {
		return false
	}
	for other, b := range bindings {
		if other != principal && b.Role == admin {
			return false
		}
	}
	return true
}
