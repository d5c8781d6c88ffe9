package blackbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// stopTime is how long a client may take to end after stop.
	stopTime = 5 * time.Second
	// maxLine is the longest line of a client, in bytes.
	maxLine = 16 << 20
)

// child is the client under test: one device of a user, over all of its processes.
type child struct {
	w       *world
	user    *user
	session string
	dir     string
	open    map[string]bool // chats whose content the client must show
	// refusals is how many messages the client may report as refused.
	refusals int

	// For the processes that start from now on.
	tokens time.Duration // how long a token is valid
	stale  bool          // the first token has expired
	wall   time.Duration // how far the client's wall clock is ahead

	p *process
}

// process is one process of a child.
type process struct {
	cmd     *exec.Cmd
	gone    chan struct{}
	can     chan []string
	shown   chan *Shown
	writing sync.Mutex
	in      io.WriteCloser
	out     io.Closer

	mu      sync.Mutex
	bad     error    // a line that is none of the protocol
	sent    []string // texts that are in the outbox and on the disk
	wanted  int      // tokens that the client asked for
	stopped bool     // the test ended the process
}

// client starts a client of a user with an empty directory.
func (w *world) client(u *user) *child {
	w.devices++
	c := &child{w: w, user: u, session: fmt.Sprintf("ses_test%d", w.devices), open: map[string]bool{}, tokens: tokenTime,
		dir: filepath.Join(w.dir, fmt.Sprintf("client%d", w.devices))}
	w.children = append(w.children, c)
	return c
}

// token makes an access token of the device.
func (c *child) token(stale bool) (string, error) {
	if stale {
		return c.w.key.IssueFor(c.user.id, c.session, time.Now().Add(-time.Hour), time.Minute)
	}
	return c.w.key.IssueFor(c.user.id, c.session, time.Now(), c.tokens)
}

// start starts a process of the client in its directory, and opens the chats that were open.
func (c *child) start() *child {
	c.w.must(os.MkdirAll(c.dir, 0o700))
	cmd := exec.CommandContext(c.w.ctx, c.w.cfg.Client[0], c.w.cfg.Client[1:]...)
	cmd.Stderr, cmd.WaitDelay = c.w.cfg.Log, stopTime
	setGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd); return nil }
	in, err := cmd.StdinPipe()
	c.w.must(err)
	out, err := cmd.StdoutPipe()
	c.w.must(err)
	c.w.must(cmd.Start())
	c.p = &process{cmd: cmd, in: in, out: out,
		gone: make(chan struct{}), can: make(chan []string, 1), shown: make(chan *Shown, 1)}
	go c.p.listen(out, func() (string, error) { return c.token(false) })
	select {
	case can := <-c.p.can:
		for _, a := range c.w.scenario.Needs {
			if !slices.Contains(can, a) {
				c.w.end(lackError(a))
			}
		}
		c.w.can = can
	case <-c.p.gone:
		c.w.failf("the client ended before its first line%s", c.p.why())
	case <-time.After(c.w.cfg.Timeout):
		c.w.failf("the client did not write its first line, which says what it can, within %s%s", c.w.cfg.Timeout, c.p.why())
	}
	token, err := c.token(c.stale)
	c.w.must(err)
	c.say(command{Do: "start", URL: c.w.proxy.url, User: c.user.id, Token: token, Directory: c.dir,
		Wall: c.wall.Milliseconds()})
	for chat := range c.open {
		c.say(command{Do: "open", Chat: chat})
	}
	return c
}

// listen takes the lines of the process until its end.
func (p *process) listen(out io.Reader, token func() (string, error)) {
	defer close(p.gone)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if text := bytes.TrimSpace(lines.Bytes()); len(text) > 0 {
			p.take(text, token)
		}
	}
	if err := lines.Err(); err != nil {
		p.fault(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = p.cmd.Wait()
}

func (p *process) take(text []byte, token func() (string, error)) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		p.fault(fmt.Errorf("the line %.200q: %w", text, err))
		return
	}
	switch {
	case l.Can != nil:
		select {
		case p.can <- l.Can:
		default:
			p.fault(fmt.Errorf("more than one line says what the client can: %.200q", text))
		}
	case l.Shown != nil:
		select {
		case p.shown <- l.Shown:
		default:
			p.fault(fmt.Errorf("more than one line answers show: %.200q", text))
		}
	case l.Sent != nil:
		p.mu.Lock()
		p.sent = append(p.sent, *l.Sent)
		p.mu.Unlock()
	case l.Want == "token":
		p.mu.Lock()
		p.wanted++
		p.mu.Unlock()
		made, err := token()
		if err == nil {
			err = p.write(command{Do: "token", Token: made})
		}
		_ = err // a process that has ended needs none
	default:
		p.fault(fmt.Errorf("the line %.200q has none of can, want, sent and shown", text))
	}
}

func (p *process) fault(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bad == nil {
		p.bad = err
	}
}

// why says what is wrong with the process; empty if nothing is known.
func (p *process) why() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gone:
		if !p.stopped {
			return fmt.Sprintf(": the process ended by itself: %s", p.cmd.ProcessState)
		}
	default:
	}
	if p.bad != nil {
		return ": " + p.bad.Error()
	}
	return ""
}

func (p *process) write(m command) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if in, ok := p.in.(interface{ SetWriteDeadline(t time.Time) error }); ok { // a client that does not read its input
		_ = in.SetWriteDeadline(time.Now().Add(stopTime))
	}
	_, err = p.in.Write(append(b, '\n'))
	return err
}

func (c *child) say(m command) {
	if err := c.p.write(m); err != nil {
		c.w.failf("the client does not read its input: %v%s", err, c.p.why())
	}
}

// show asks the client what it shows.
func (c *child) show() *Shown {
	c.say(command{Do: "show"})
	select {
	case s := <-c.p.shown:
		if why := c.p.why(); why != "" {
			c.w.failf("the client broke the protocol%s", why)
		}
		if d := always(s); d != "" {
			c.w.failf("%s", d)
		}
		return s
	case <-c.p.gone:
	case <-time.After(c.w.cfg.Timeout):
	}
	c.w.failf("the client did not answer show within %s%s", c.w.cfg.Timeout, c.p.why())
	return nil
}

// opens has the client load chats.
func (c *child) opens(chats ...string) *child {
	for _, chat := range chats {
		c.open[chat] = true
		if c.p != nil {
			c.say(command{Do: "open", Chat: chat})
		}
	}
	return c
}

// closes drops the content of chats from what the client must show.
func (c *child) closes(chats ...string) {
	for _, chat := range chats {
		delete(c.open, chat)
	}
}

// send has the client send n messages, each with a text of its own, and waits until they are in its outbox.
func (c *child) send(chat string, n int) (texts []string) {
	for range n {
		text := c.w.text(c.user.id)
		texts = append(texts, text)
		c.say(command{Do: "send", Chat: chat, Text: text})
	}
	c.w.until("the client has stored the messages that it sends", func() string {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		for _, text := range texts {
			if !slices.Contains(c.p.sent, text) {
				return fmt.Sprintf("the client has not said that %q is sent", text)
			}
		}
		return ""
	}, c)
	return texts
}

func (c *child) read(chat string, sequence int64) {
	c.say(command{Do: "read", Chat: chat, Sequence: sequence})
}

// setClock moves the wall clock that the client sees.
func (c *child) setClock(ahead time.Duration) {
	c.wall = ahead
	c.say(command{Do: "clock", Wall: ahead.Milliseconds()})
}

// wanted is how often the process asked for a token.
func (c *child) wanted() int {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.p.wanted
}

// kill ends the process without a warning.
func (c *child) kill() {
	c.p.mu.Lock()
	c.p.stopped = true
	c.p.mu.Unlock()
	killGroup(c.p.cmd)
	select {
	case <-c.p.gone:
	case <-time.After(stopTime): // a process that left the group has its output
		_ = c.p.out.Close()
		<-c.p.gone
	}
}

// stop asks the client to end, and kills it if it does not.
func (c *child) stop() {
	c.p.mu.Lock()
	c.p.stopped = true
	c.p.mu.Unlock()
	_ = c.p.write(command{Do: "stop"})
	select {
	case <-c.p.gone:
	case <-time.After(stopTime):
		c.kill()
	}
}
