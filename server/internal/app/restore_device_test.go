package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// device is a client that keeps some chats.
type device interface {
	send(chat, text string)
	// differs says where it shows something else than the store has.
	differs(id string, stored []*messagev1.Message) string
}

// goDevice is a device of the Go client.
type goDevice struct{ *client.Client }

// newGoDevice runs a device of a user until the test ends.
func newGoDevice(t *testing.T, bearer, addr, name string, chats []string) device {
	c, err := client.Dial(client.Config{BaseURL: "http://" + addr, UserID: name, Storage: &client.Memory{},
		HTTP:  &http.Client{Transport: newTransport(t, false)},
		Token: func(context.Context, bool) (string, error) { return bearer, nil }})
	testkit.Must(t, err)
	for _, id := range chats {
		c.Open(id)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); ctx.Err() == nil {
			t.Error(name, "ended:", err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return goDevice{c}
}

func (d goDevice) send(chat, text string) { d.Send(chat, text) }

func (d goDevice) differs(id string, stored []*messagev1.Message) string {
	if n := len(d.Outbox()); n > 0 {
		return fmt.Sprint(n, " messages wait to be sent")
	}
	v, ok := d.View(id)
	if !ok || v.Version != v.Newest {
		return fmt.Sprintf("%s is not up to date: %v, version %d of %d", id, ok, v.Version, v.Newest)
	}
	shows := shownChat{Loaded: v.Loaded, First: v.First, Last: v.Head.GetSequence()}
	for _, m := range v.Messages {
		shows.Messages = append(shows.Messages, shownMessage{m.GetMessageId(), m.GetSequence(), m.GetContent()})
	}
	return shows.differs(id, stored)
}

// shownChat is a chat as a device shows it, complete from the sequence First on.
type shownChat struct {
	Loaded      bool           `json:"loaded"`
	First, Last int64          // sequences
	Messages    []shownMessage `json:"messages"`
}

type shownMessage struct {
	ID       string `json:"id"`
	Sequence int64  `json:"sequence"`
	Content  string `json:"content"`
}

func (c *shownChat) differs(id string, stored []*messagev1.Message) string {
	if !c.Loaded {
		return id + " is not loaded"
	}
	last := int64(len(stored))
	if last > 0 {
		stored = stored[min(len(stored), int(max(c.First, 1))-1):]
	}
	if len(c.Messages) != len(stored) {
		return fmt.Sprintf("%s has %d messages from %d on, the store %d", id, len(c.Messages), c.First, len(stored))
	}
	for i, m := range stored {
		if want := (shownMessage{m.GetMessageId(), m.GetSequence(), m.GetContent()}); c.Messages[i] != want {
			return fmt.Sprintf("%s: %v, the store has %v", id, c.Messages[i], want)
		}
	}
	if last > 0 && c.Last != last {
		return fmt.Sprintf("%s ends at %d in the list, at %d in the store", id, c.Last, last)
	}
	return ""
}

// nodeDevice is a device of the TypeScript client, in a process of Node.js.
type nodeDevice struct {
	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Reader
	said output
}

// packedClient is where .tools/tsclient/pack has built the TypeScript client; empty if it is not set.
func packedClient() string { return os.Getenv("PARLEY_TEST_TSCLIENT") }

func newNodeDevice(t *testing.T, dir, addr, name string, chats []string) device {
	script, err := filepath.Abs(filepath.Join("testdata", "device.mjs"))
	testkit.Must(t, err)
	args := []string{script, packedClient(), "http://" + addr, token(t, dir, name), name}
	cmd := exec.Command("node", append(args, chats...)...)
	d := &nodeDevice{t: t}
	cmd.Stderr = &d.said
	d.in, err = cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	d.out = bufio.NewReader(out)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return d
}

// write gives it a line.
func (d *nodeDevice) write(line any) {
	b, err := json.Marshal(line)
	testkit.Must(d.t, err)
	if _, err := d.in.Write(append(b, '\n')); err != nil {
		d.t.Fatalf("the TypeScript client has ended: %s", d.said.tail(2000))
	}
}

func (d *nodeDevice) send(chat, text string) { d.write(map[string]string{"chat": chat, "text": text}) }

func (d *nodeDevice) differs(id string, stored []*messagev1.Message) string {
	d.write(map[string]string{})
	line, err := d.out.ReadBytes('\n')
	if err != nil {
		d.t.Fatalf("the TypeScript client has ended: %s", d.said.tail(2000))
	}
	var shows struct {
		Unsent int                  `json:"unsent"`
		Chats  map[string]shownChat `json:"chats"`
	}
	testkit.Must(d.t, json.Unmarshal(line, &shows))
	if shows.Unsent > 0 {
		return fmt.Sprint(shows.Unsent, " messages wait to be sent")
	}
	chat := shows.Chats[id]
	return chat.differs(id, stored)
}
