package opsctl

import (
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	adminv1 "github.com/parley-chat/parley/gen/parley/admin/v1"
	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

// change has the flags of a command that changes something for a reason.
type change struct {
	reason  string
	execute bool
}

// flags declares them.
func (f *change) flags(fs *pflag.FlagSet) {
	reasonFlag(fs, &f.reason)
	executeFlag(fs, &f.execute)
}

// explainAdmin is Explain for services that not every server has.
func explainAdmin(err error) string {
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return "the server does not have this: it is of another release, or has no such part of identity"
	}
	return Explain(err)
}

func (p *program) users() *cobra.Command {
	var suspend, restore change
	return cmdline.Group("users", "commands on users",
		p.command(spec{use: "show USER", short: "show whether a user may use the installation", args: 1,
			run: func(c *call) error {
				res, err := c.userService().GetUser(c.ctx, &adminv1.GetUserRequest{UserId: c.args[0]})
				if err != nil || c.printJSON(res) {
					return err
				}
				return c.printUser(res.GetUser())
			}}),
		p.command(spec{use: "suspend USER", short: "keep a user out, and end what they have open", args: 1,
			flags: suspend.flags, run: func(c *call) error {
				res, err := c.userService().SuspendUser(c.ctx, &adminv1.SuspendUserRequest{UserId: c.args[0],
					Reason: suspend.reason, Execute: suspend.execute})
				if err != nil || c.printJSON(res) {
					return err
				}
				if err := c.printUser(res.GetUser()); err != nil {
					return err
				}
				return c.done(suspend.execute, "suspended: tokens are refused everywhere within 5s")
			}}),
		p.command(spec{use: "restore USER", short: "let a suspended user in again", args: 1, flags: restore.flags,
			run: func(c *call) error {
				res, err := c.userService().RestoreUser(c.ctx, &adminv1.RestoreUserRequest{UserId: c.args[0],
					Reason: restore.reason, Execute: restore.execute})
				if err != nil || c.printJSON(res) {
					return err
				}
				if err := c.printUser(res.GetUser()); err != nil {
					return err
				}
				return c.done(restore.execute, "restored: the user signs in again")
			}}))
}

func (c *call) userService() adminv1connect.UserAdminServiceClient {
	return adminv1connect.NewUserAdminServiceClient(c.http, c.url, c.with)
}

func (c *call) printUser(u *adminv1.UserAccount) error {
	return c.table(func(w io.Writer) {
		fmt.Fprintf(w, "user\t%s\n", safe(u.GetUserId()))
		fmt.Fprintf(w, "status\t%s\n", word(u.GetStatus(), "USER_STATUS_"))
		fmt.Fprintf(w, "seen first\t%s\n", formatTime(u.GetCreatedAt()))
		if u.Chats != nil {
			fmt.Fprintf(w, "chats\t%d\n", u.GetChats())
		}
	})
}

func (p *program) sessions() *cobra.Command {
	var one, all change
	return cmdline.Group("sessions", "commands on sessions",
		p.command(spec{use: "list USER", short: "list where a user is signed in", args: 1, run: func(c *call) error {
			res, err := c.sessionService().ListSessions(c.ctx, &adminv1.ListSessionsRequest{UserId: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "SESSION\tDEVICE\tOPENED\tUSED\tENDS")
				for _, s := range res.GetSessions() {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", safe(s.GetSessionId()), safe(s.GetDevice()),
						formatTime(s.GetCreatedAt()), formatTime(s.GetUsedAt()), formatTime(s.GetExpiresAt()))
				}
			})
		}}),
		p.command(spec{use: "end USER SESSION", short: "end a session", args: 2, flags: one.flags,
			run: func(c *call) error {
				res, err := c.sessionService().EndSession(c.ctx, &adminv1.EndSessionRequest{UserId: c.args[0],
					SessionId: c.args[1], Reason: one.reason, Execute: one.execute})
				if err != nil || c.printJSON(res) {
					return err
				}
				return c.done(one.execute, "ended")
			}}),
		p.command(spec{use: "end-all USER", short: "end all sessions of a user, who may sign in again", args: 1,
			flags: all.flags, run: func(c *call) error {
				res, err := c.sessionService().EndAllSessions(c.ctx, &adminv1.EndAllSessionsRequest{UserId: c.args[0],
					Reason: all.reason, Execute: all.execute})
				if err != nil || c.printJSON(res) {
					return err
				}
				fmt.Fprintf(c.stdout, "%d sessions\n", res.GetSessions())
				return c.done(all.execute, "ended")
			}}))
}

func (c *call) sessionService() adminv1connect.SessionAdminServiceClient {
	return adminv1connect.NewSessionAdminServiceClient(c.http, c.url, c.with)
}

func (p *program) chats() *cobra.Command {
	var req adminv1.ReadMessagesRequest
	return cmdline.Group("chats", "look into a chat",
		p.command(spec{use: "show CHAT", short: "show what a chat is", args: 1, run: func(c *call) error {
			res, err := c.chatService().GetChat(c.ctx, &adminv1.GetChatRequest{ChatId: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.printInspected(res.GetChat())
		}}),
		p.command(spec{use: "members CHAT", short: "list who is in a chat", args: 1, run: func(c *call) error {
			res, err := c.chatService().ListChatMembers(c.ctx, &adminv1.ListChatMembersRequest{ChatId: c.args[0]})
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.table(func(w io.Writer) {
				fmt.Fprintln(w, "USER\tROLE\tJOINED\tAFTER MESSAGE")
				for _, m := range res.GetMembers() {
					role := word(m.GetRole(), "MEMBER_ROLE_")
					if m.GetPending() {
						role += ", still to be added"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", safe(m.GetUserId()), role, formatTime(m.GetJoinedAt()),
						m.GetJoinedSequence())
				}
			})
		}}),
		p.command(spec{use: "messages CHAT", short: "read messages, for a reason that is kept", args: 1,
			flags: func(fs *pflag.FlagSet) {
				reasonFlag(fs, &req.Reason)
				fs.Int64Var(&req.FromSequence, "from", 0, "from this `message` on; the last ones if not given")
				fs.Int32Var(&req.Limit, "limit", 50, "`messages`, 1 to 200")
			},
			run: func(c *call) error {
				req.ChatId = c.args[0]
				res, err := c.chatService().ReadMessages(c.ctx, &req)
				if err != nil || c.printJSON(res) {
					return err
				}
				return c.table(func(w io.Writer) {
					for _, m := range res.GetMessages() {
						fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", m.GetSequence(), formatTime(m.GetCreatedAt()), safe(m.GetSenderId()),
							safe(m.GetContent()))
					}
				})
			}}))
}

func (c *call) chatService() adminv1connect.ChatAdminServiceClient {
	return adminv1connect.NewChatAdminServiceClient(c.http, c.url, c.with)
}

func (c *call) printInspected(chat *adminv1.InspectedChat) error {
	return c.table(func(w io.Writer) {
		fmt.Fprintf(w, "chat\t%s\n", safe(chat.GetChatId()))
		fmt.Fprintf(w, "type\t%s\n", word(chat.GetType(), "CHAT_TYPE_"))
		fmt.Fprintf(w, "made\t%s by %s\n", formatTime(chat.GetCreatedAt()), safe(chat.GetCreatedBy()))
		fmt.Fprintf(w, "changed\t%s\n", formatTime(chat.GetUpdatedAt()))
		fmt.Fprintf(w, "members\t%d\n", chat.GetMembers())
		fmt.Fprintf(w, "messages\t%d, the last one %s\n", chat.GetSequence(), formatTime(chat.GetLastMessageAt()))
		fmt.Fprintf(w, "version\t%d\n", chat.GetVersion())
	})
}
