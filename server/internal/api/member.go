package api

import (
	"context"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// changeMember runs a change of a membership.
func (h *chatHandler) changeMember(
	ctx context.Context, op chat.Operation, chatID, user string, role chatv1.MemberRole, requestID string,
) (*chatv1.Member, error) {
	out, err := h.chat.Change(ctx, op, chat.MemberChange{
		Caller: caller(ctx), ChatID: chatID, UserID: user, Role: roleOf(role), RequestID: requestID,
		Cause: cause(ctx, requestID),
	})
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, out.Replayed)
	return view.Member(out.Member), nil
}

func roleOf(r chatv1.MemberRole) table.Role {
	switch r {
	case chatv1.MemberRole_MEMBER_ROLE_OWNER:
		return table.Owner // which no call can grant; the rules say so
	case chatv1.MemberRole_MEMBER_ROLE_ADMIN:
		return table.Admin
	default:
		return table.Member
	}
}

// AddMember implements ChatService.
func (h *chatHandler) AddMember(ctx context.Context, req *chatv1.AddMemberRequest) (*chatv1.AddMemberResponse, error) {
	m, err := h.changeMember(ctx, chat.OpAdd, req.GetChatId(), req.GetUserId(), req.GetRole(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &chatv1.AddMemberResponse{Member: m}, nil
}

// RemoveMember implements ChatService.
func (h *chatHandler) RemoveMember(
	ctx context.Context, req *chatv1.RemoveMemberRequest,
) (*chatv1.RemoveMemberResponse, error) {
	if _, err := h.changeMember(ctx, chat.OpRemove, req.GetChatId(), req.GetUserId(), 0, req.GetRequestId()); err != nil {
		return nil, err
	}
	return &chatv1.RemoveMemberResponse{}, nil
}

// LeaveChat implements ChatService.
func (h *chatHandler) LeaveChat(ctx context.Context, req *chatv1.LeaveChatRequest) (*chatv1.LeaveChatResponse, error) {
	if _, err := h.changeMember(ctx, chat.OpLeave, req.GetChatId(), "", 0, req.GetRequestId()); err != nil {
		return nil, err
	}
	return &chatv1.LeaveChatResponse{}, nil
}

// UpdateMemberRole implements ChatService.
func (h *chatHandler) UpdateMemberRole(
	ctx context.Context, req *chatv1.UpdateMemberRoleRequest,
) (*chatv1.UpdateMemberRoleResponse, error) {
	m, err := h.changeMember(ctx, chat.OpRole, req.GetChatId(), req.GetUserId(), req.GetRole(), req.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &chatv1.UpdateMemberRoleResponse{Member: m}, nil
}

// UpdateChat implements ChatService.
func (h *chatHandler) UpdateChat(
	ctx context.Context, req *chatv1.UpdateChatRequest,
) (*chatv1.UpdateChatResponse, error) {
	if req.Name != nil {
		if err := checkName("name", req.GetName()); err != nil {
			return nil, err
		}
	}
	row, replayed, err := h.chat.UpdateChat(ctx, chat.ChatChange{
		Caller: caller(ctx), ChatID: req.GetChatId(), Name: req.Name, Expected: req.GetExpectedVersion(),
		RequestID: req.GetRequestId(), Cause: cause(ctx, req.GetRequestId()),
	})
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, replayed)
	return &chatv1.UpdateChatResponse{Chat: view.Chat(row)}, nil
}

// setOwn changes what a chat holds for the caller alone.
func (h *chatHandler) setOwn(ctx context.Context, own chat.MemberSettings) (*chatv1.MemberState, error) {
	own.Caller = caller(ctx)
	out, err := h.chat.SetMemberSettings(ctx, own)
	if err != nil {
		return nil, err
	}
	markReplayed(ctx, out.Replayed)
	return h.view.State(out.Head, out.Row), nil
}

// MuteChat implements ChatService.
func (h *chatHandler) MuteChat(ctx context.Context, req *chatv1.MuteChatRequest) (*chatv1.MuteChatResponse, error) {
	until := int64(table.Forever)
	if t := req.GetMutedUntil(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, invalidField("muted_until", "must be a time of the years 1 to 9999")
		}
		until = min(max(t.AsTime().UnixMilli(), 1), table.Forever) // the past is refused where repetitions are known
	}
	state, err := h.setOwn(ctx, chat.MemberSettings{ChatID: req.GetChatId(), MutedUntil: &until, Procedure: "mute",
		RequestID: req.GetRequestId()})
	if err != nil {
		return nil, fieldOf(err, "muted_until") // the rest was validated
	}
	return &chatv1.MuteChatResponse{State: state}, nil
}

// UnmuteChat implements ChatService.
func (h *chatHandler) UnmuteChat(
	ctx context.Context, req *chatv1.UnmuteChatRequest,
) (*chatv1.UnmuteChatResponse, error) {
	state, err := h.setOwn(ctx, chat.MemberSettings{ChatID: req.GetChatId(), MutedUntil: new(int64), Procedure: "unmute",
		RequestID: req.GetRequestId()})
	if err != nil {
		return nil, err
	}
	return &chatv1.UnmuteChatResponse{State: state}, nil
}

// ArchiveChat implements ChatService.
func (h *chatHandler) ArchiveChat(
	ctx context.Context, req *chatv1.ArchiveChatRequest,
) (*chatv1.ArchiveChatResponse, error) {
	archived := true
	state, err := h.setOwn(ctx, chat.MemberSettings{ChatID: req.GetChatId(), Archived: &archived, Procedure: "archive",
		RequestID: req.GetRequestId()})
	if err != nil {
		return nil, err
	}
	return &chatv1.ArchiveChatResponse{State: state}, nil
}

// UnarchiveChat implements ChatService.
func (h *chatHandler) UnarchiveChat(
	ctx context.Context, req *chatv1.UnarchiveChatRequest,
) (*chatv1.UnarchiveChatResponse, error) {
	state, err := h.setOwn(ctx, chat.MemberSettings{ChatID: req.GetChatId(), Archived: new(bool), Procedure: "unarchive",
		RequestID: req.GetRequestId()})
	if err != nil {
		return nil, err
	}
	return &chatv1.UnarchiveChatResponse{State: state}, nil
}
