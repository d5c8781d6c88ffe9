package streams

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
)

// send repeats a message until it is acknowledged: the server is away now and then.
func (p *program) send(ctx context.Context, addr, chat, content, key string) error {
	token := p.token("alice")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/api/v1/chats/"+chat+"/messages",
			strings.NewReader(`{"content":"`+content+`"}`))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode/100 == 2 {
				return nil
			}
			if res.StatusCode < 500 {
				return fmt.Errorf("send: %s", res.Status)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestResumeByCurl follows 200 messages with curl alone, which starts again with the
// last id that it printed, while the server is killed twice: nothing is missing, and
// each stream resumes with exactly what follows the id.
func TestResumeByCurl(t *testing.T) {
	t.Parallel()
	p := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p.rest("bob", http.MethodGet, "/chats", "")
	chat := p.group([]string{"bob"})
	const messages = 200
	addr := p.addr
	var sending sync.WaitGroup
	var failed error
	sent := make(chan int, messages)
	f := &follower{t: t, seen: map[int64]string{}, live: make(chan struct{})}
	sending.Go(func() {
		<-f.live // before that, messages only show in the chat's head
		for i := range messages {
			if failed = p.send(ctx, addr, chat, fmt.Sprint("m", i),
				fmt.Sprintf("3b241101-e2bb-4255-8caf-%012d", i)); failed != nil {
				return
			}
			sent <- i
			time.Sleep(time.Millisecond) // the kills come among the messages, not after them
		}
	})
	var killing sync.WaitGroup
	killing.Go(func() {
		for i := range sent {
			if i == 60 || i == 130 {
				p.kill()
				p.run(addr)
			}
			if i == messages-1 {
				return
			}
		}
	})
	for f.last < messages && ctx.Err() == nil {
		f.curl(ctx, addr, p.token("bob"))
	}
	sending.Wait()
	killing.Wait()
	if failed != nil || len(f.seen) != messages {
		t.Fatalf("%d messages of %d, %v", len(f.seen), messages, failed)
	}
	for i := range int64(messages) {
		if f.seen[i+1] != fmt.Sprint("m", i) {
			t.Fatalf("message %d is %q", i+1, f.seen[i+1])
		}
	}
	if f.streams < 3 {
		t.Errorf("%d streams; the server was killed twice", f.streams)
	}
	t.Logf("%d streams, %d repetitions of what came after the last id", f.streams, f.repeated)
}

// follower is a client of server-sent events.
type follower struct {
	t    *testing.T
	id   string
	atID int64 // sequence that had been seen when the id came
	last int64
	seen map[int64]string
	live chan struct{}

	streams, repeated int
}

// curl follows one stream until it breaks or all is there.
func (f *follower) curl(ctx context.Context, addr, token string) {
	args := []string{"-sN", "-H", "Authorization: Bearer " + token, "http://" + addr + "/api/v1/stream"}
	if f.id != "" {
		args = append(args, "-H", "Last-Event-ID: "+f.id)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "curl", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	first := true
	err = parseEvents(out, func(e event) error {
		if e.kind != "" || e.id == "" {
			return fmt.Errorf("event %q of id %q: %s", e.kind, e.id, e.data)
		}
		frame := &deliveryv1.Frame{}
		if err := protojson.Unmarshal([]byte(e.data), frame); err != nil {
			f.t.Errorf("%s: %v", e.data, err)
			return err
		}
		if frame.GetHello() != nil {
			f.streams++
		}
		if frame.GetHeartbeat() != nil && f.last == 0 && f.streams == 1 {
			close(f.live)
		}
		if m := frame.GetMessage(); m != nil {
			if first && m.GetSequence() != f.atID+1 {
				f.t.Errorf("resumed with message %d; the id stands behind %d", m.GetSequence(), f.atID)
			}
			if !first && m.GetSequence() != f.last+1 && m.GetSequence() > f.atID+1 && f.seen[m.GetSequence()-1] == "" {
				f.t.Errorf("message %d after %d", m.GetSequence(), f.last)
			}
			if f.seen[m.GetSequence()] != "" {
				f.repeated++
			}
			first = false
			f.seen[m.GetSequence()] = m.GetContent()
			f.last = max(f.last, m.GetSequence())
		}
		if e.id != f.id {
			f.id, f.atID = e.id, f.last
		}
		if f.last == 200 {
			return errAll
		}
		return nil
	})
	cancel()
	_ = cmd.Wait()
	if err != nil && ctx.Err() == nil {
		f.t.Logf("stream ended: %v", err)
	}
	time.Sleep(20 * time.Millisecond) // a client's pause before it connects again
}

var errAll = fmt.Errorf("all is there")

// What curl shows is what the documentation says: lines of text.
func TestCurlShowsEvents(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "curl", "-sN", version, "-i", "-H", "Authorization: Bearer "+p.token("bob"),
			"http://"+p.addr+"/api/v1/stream")
		out, err := cmd.StdoutPipe()
		p.must(err)
		p.must(cmd.Start())
		var text strings.Builder
		lines := bufio.NewReader(out)
		for heartbeat := false; err == nil; {
			var line string
			line, err = lines.ReadString('\n')
			text.WriteString(strings.ToLower(line))
			if heartbeat = heartbeat || strings.Contains(line, `"heartbeat":{"token":"`); heartbeat && line == "\n" {
				break // a whole event: the stream itself has no end
			}
		}
		cancel()
		_ = cmd.Wait()
		for _, want := range []string{"content-type: text/event-stream", "\nretry: 1000\nid: ", "\ndata: {",
			`"heartbeat":{"token":"`, "}\n\n"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: no %q in %s", version, want, &text)
			}
		}
	}
}
