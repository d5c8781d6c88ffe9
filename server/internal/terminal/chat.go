package terminal

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/client/device"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/internal/terminal/screen"
)

const startTimeout = 30 * time.Second

const chatHelp = `  Chats are on the left, the one that is chosen on the right. Messages that are written while the server is away go out
  when it is back, as long as the command runs.
`

// Chat makes the command that chats in a terminal.
func Chat(config func() (Config, error)) *cobra.Command {
	return command(&cobra.Command{
		Use: "chat [USER] [--flags]", Short: "chat in this terminal, while the server runs", Long: chatHelp + loginHelp,
	}, config, chat)
}

func chat(ctx context.Context, cfg Config, base string, token bearer.Source) error {
	if !cmdline.Terminal(cfg.Stdout) {
		return cmdline.Usagef("chat needs a terminal; tail prints a user's stream elsewhere")
	}
	text, err := token(ctx, false)
	if err != nil {
		return err
	}
	user, err := subject(text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var program *tea.Program
	c, err := client.Dial(client.Config{BaseURL: base, UserID: user, Token: token,
		OnEvent: func(e device.Event) { program.Send(screen.Event(e)) }})
	if err != nil {
		return err
	}
	model := screen.New(person{c, ctx}, user, time.Local)
	program = tea.NewProgram(model, tea.WithContext(ctx), tea.WithOutput(cfg.Stdout), tea.WithoutSignalHandler())
	var running sync.WaitGroup
	running.Go(func() { program.Send(screen.Stopped{Err: c.Run(ctx)}) })
	_, err = program.Run()
	ended := ctx.Err() != nil // interrupted from outside
	cancel()
	running.Wait()
	if err == nil {
		err = model.Err()
	}
	if ended {
		return nil
	}
	return err
}

// person is a client that also starts chats.
type person struct {
	*client.Client
	ctx context.Context //nolint:containedctx // of the one command that this is
}

// Start implements screen.Client.
func (p person) Start(name string, others []string) (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	defer cancel()
	req := &chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_DIRECT, Name: name, MemberIds: others}
	if name != "" {
		req.Type = chatv1.ChatType_CHAT_TYPE_GROUP
	}
	made, err := p.Create(ctx, req)
	return made.GetChat().GetChatId(), err
}

// subject is the user whose token it is. The server checks it; here it only says whose
// chats are shown.
func subject(token string) (string, error) {
	var claims struct {
		Subject string `json:"sub"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("the token has not the form of one: header, claims and signature, with dots between them")
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(b, &claims)
	}
	if err == nil && claims.Subject == "" {
		err = errors.New("it names no user")
	}
	if err != nil {
		return "", fmt.Errorf("the token cannot be read: %w", err)
	}
	return claims.Subject, nil
}
