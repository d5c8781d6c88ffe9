package userapi

import (
	"net/url"
	"regexp"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	userv1 "github.com/parley-chat/parley/gen/parley/user/v1"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/internal/api"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

var whoAdds = map[userv1.WhoMayAdd]rows.WhoAdds{
	userv1.WhoMayAdd_WHO_MAY_ADD_EVERYBODY:   rows.Everybody,
	userv1.WhoMayAdd_WHO_MAY_ADD_SHARED_CHAT: rows.SharedChat,
	userv1.WhoMayAdd_WHO_MAY_ADD_NOBODY:      rows.Nobody,
}

// at is a time in unix ms; 0 is none.
func at(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(ms))
}

func profile(p people.Profile) *userv1.Profile {
	return &userv1.Profile{UserId: p.UserID, DisplayName: p.DisplayName, Avatar: p.Avatar, About: p.About,
		Handle: p.Handle, Version: p.Version, Etag: people.Etag(p), UpdatedAt: at(p.UpdatedAt), Deleted: p.Deleted}
}

func settings(s people.Settings) *userv1.Settings {
	out := &userv1.Settings{FindableByIdentifier: s.Findable}
	for w, value := range whoAdds {
		if value == s.WhoAdds {
			out.WhoMayAdd = w
		}
	}
	return out
}

func blocked(b rows.Block) *userv1.BlockedUser {
	return &userv1.BlockedUser{UserId: b.Other, BlockedAt: at(b.At)}
}

func invitation(i rows.Invitation) *userv1.Invitation {
	return &userv1.Invitation{ChatId: i.ChatID, ChatName: i.ChatName, InvitedBy: i.By, InvitedAt: at(i.At),
		ExpiresAt: timestamppb.New(time.Unix(i.ExpiresAt, 0))}
}

func record(r people.Record) *userv1.ExportDataResponse {
	out := &userv1.ExportDataResponse{Cursor: r.Cursor}
	switch {
	case r.Profile != nil:
		out.Record = &userv1.ExportDataResponse_Profile{Profile: profile(*r.Profile)}
	case r.Settings != nil:
		out.Record = &userv1.ExportDataResponse_Settings{Settings: settings(*r.Settings)}
	case r.Blocked != nil:
		out.Record = &userv1.ExportDataResponse_BlockedUser{BlockedUser: blocked(*r.Blocked)}
	case r.Invitation != nil:
		out.Record = &userv1.ExportDataResponse_Invitation{Invitation: invitation(*r.Invitation)}
	case r.Chat != nil:
		out.Record = &userv1.ExportDataResponse_Chat{Chat: &userv1.ExportedChat{ChatId: r.Chat.Chat.ChatID,
			Name: r.Chat.Chat.Name, ReadSequence: r.Chat.Own.ReadSequence, MutedUntil: at(r.Chat.Own.MutedUntil),
			Archived: r.Chat.Own.Archived}}
	case r.Message != nil:
		m := r.Message
		out.Record = &userv1.ExportDataResponse_Message{Message: &userv1.ExportedMessage{ChatId: m.ChatID,
			MessageId: m.MessageID, Sequence: m.Sequence, CreatedAt: at(m.CreatedAt), Content: m.Content}}
	case r.End != nil:
		out.Record = &userv1.ExportDataResponse_End{End: &userv1.ExportEnd{Messages: r.End.Messages}}
	default:
		out.Record = &userv1.ExportDataResponse_Identifier{Identifier: r.Identifier}
	}
	return out
}

// pictureName is the form of an avatar that is no address: parts of a path that begins
// nowhere.
var pictureName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// checkAvatar refuses addresses that a client could take for something other than a
// picture: those with another scheme, without a host, or with a password.
func checkAvatar(avatar string) error {
	u, err := url.Parse(avatar)
	if avatar == "" || pictureName.MatchString(avatar) ||
		err == nil && u.Scheme == "https" && u.Host != "" && u.Opaque == "" && u.User == nil {
		return nil
	}
	return api.Invalid("avatar", "must be an https address, or a name of letters, digits and ._-/")
}
