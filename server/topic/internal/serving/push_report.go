package serving

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// PushReport is how the pushes of a group go. It is safe for concurrent use, and its zero value says that
// nothing is known.
type PushReport struct {
	mu     sync.Mutex
	status *topicv1.PushStatus
}

// Set records how the pushes go from now on. It sets since.
func (r *PushReport) Set(s *topicv1.PushStatus, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Since = timestamppb.New(now); r.status != nil && r.status.GetState() == s.GetState() {
		s.Since = r.status.GetSince()
	}
	r.status = s
}

// Reset forgets how the pushes went.
func (r *PushReport) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = nil
}

// goneText is what a paused webhook says.
const goneText = "the webhook answered 410, which paused the subscription: " +
	"resume it once the webhook takes messages again"

// show returns the status of a subscription with a webhook.
func (r *PushReport) show(sub *storage.Subscription) *topicv1.PushStatus {
	if sub.Push != nil && sub.Push.GoneAt > 0 && sub.State == storage.Paused {
		return &topicv1.PushStatus{State: topicv1.PushState_PUSH_STATE_PAUSED,
			Since: timestamppb.New(time.UnixMilli(sub.Push.GoneAt)), LastStatus: 410, LastError: "gone", Text: goneText}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return &topicv1.PushStatus{}
	}
	return proto.CloneOf(r.status)
}
