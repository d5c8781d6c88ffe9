package opsctl

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// maxSecretFile bounds the file of a secret, in bytes.
const maxSecretFile = 4096

// pushFlag declares the flag of a webhook.
func pushFlag(fs *pflag.FlagSet, to **topicv1.PushConfig) {
	const usage = "send the messages to the webhook at this `url`, in place of members that attach"
	fs.Func("push-url", usage, func(s string) error {
		if s == "" {
			return errors.New("must be an address such as https://hooks.example.com/orders")
		}
		*to = &topicv1.PushConfig{Url: s}
		return nil
	})
}

// secretFlag declares the flag of a webhook's secret, which is in a file: everybody on the machine can read flags.
func secretFlag(fs *pflag.FlagSet, to *string) {
	fs.Func("push-secret-file", "`file` with the secret of the webhook's signatures, whsec_ and base64; without it the "+
		"server makes one", func(path string) (err error) {
		*to, err = readSecret(path)
		return err
	})
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(b))
	if s == "" || strings.ContainsAny(s, " \n") {
		return "", errors.New("must be a file with one secret")
	}
	return s, nil
}

// saySecret shows the secret that the server has made.
func (c *call) saySecret(secret string) error {
	if secret == "" {
		return nil
	}
	return c.say("secret of the webhook's signatures, which is not shown again: %s", safe(secret))
}

// pushRows shows a group's webhook and how its pushes go.
func pushRows(row func(name string, value any), s *topicv1.Subscription) {
	if s.GetConfig().GetPush() == nil {
		return
	}
	row("webhook", safe(s.GetConfig().GetPush().GetUrl()))
	p := s.GetPushStatus()
	text := "nothing was sent yet"
	if p.GetState() != 0 {
		text = fmt.Sprintf("%s since %s", flagWord(p.GetState(), "PUSH_STATE_"), formatTime(p.GetSince()))
	}
	if p.GetText() != "" {
		text += ": " + safe(p.GetText())
	}
	row("pushes", text)
}
