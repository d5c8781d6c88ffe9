package scenario

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/server/load/rpc"
)

const (
	setupCallers = 16
	callTime     = 30 * time.Second // of a call, and of what follows the last one of a round
	maxToken     = 16 << 10         // bytes of a line of a file of tokens
)

// person is a user who exists for the load test.
type person struct {
	name, token string
	conn        *rpc.Conn  // of the stream, shared with others if so asked for
	calls       rpc.Caller // the same one, or the pool of HTTP/1.1
}

// group is a chat.
type group struct {
	id      string
	members []*person
}

// world is the users and chats of a run. Their names are new each time, because users who
// have been in earlier runs have more chats, which cost more.
type world struct {
	run    *run
	people []*person
	groups []*group
	pool   *rpc.Pool
	conns  []*rpc.Conn
}

func newWorld(ctx context.Context, r *run) (*world, error) {
	w := &world{run: r, pool: rpc.NewPool(r.target)}
	users := r.Clients
	if users == 0 {
		users = max(r.Users, r.Members)
	}
	if err := w.name(users); err != nil {
		return nil, err
	}
	stop := r.show.During("users and chats", 0, nil)
	defer stop()
	// The first one alone: it finds mistakes of the server or the tokens.
	if err := w.greet(ctx, w.people[0]); err != nil {
		return nil, explain(err)
	}
	err := each(len(w.people)-1, setupCallers, func(i int) error { return w.greet(ctx, w.people[i+1]) })
	if err == nil && r.Members > 0 {
		err = w.gather(ctx)
	}
	if err != nil {
		w.close()
		return nil, explain(err)
	}
	return w, nil
}

// name makes users, with tokens that are issued or come from a file.
func (w *world) name(users int) error {
	w.people = make([]*person, users)
	if w.run.TokenFile != "" {
		return w.readTokens(w.run.TokenFile)
	}
	prefix := "load-" + strings.ToLower(rand.Text()[:8])
	for i := range w.people {
		p := &person{name: fmt.Sprintf("%s-%d", prefix, i)}
		var err error
		if p.token, err = w.run.cfg.Issue(p.name); err != nil {
			return fmt.Errorf("%w; for a server whose key is not here, name a file of tokens with --token-file", err)
		}
		w.people[i] = p
	}
	return nil
}

func (w *world) readTokens(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxToken)
	n := 0
	for n < len(w.people) && lines.Scan() {
		token := strings.TrimSpace(lines.Text())
		if token == "" {
			continue
		}
		name, err := subject(token)
		if err != nil {
			return fmt.Errorf("%s: token %d: %w", path, n+1, err)
		}
		w.people[n] = &person{name: name, token: token}
		n++
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if n < len(w.people) {
		return fmt.Errorf("%s has %d tokens; this needs %d users", path, n, len(w.people))
	}
	return nil
}

// subject is the user that a token is for. Whether it is good is for the server to say.
func subject(token string) (string, error) {
	var claims struct {
		Sub string `json:"sub"`
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		text, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(text, &claims) == nil && claims.Sub != "" {
			return claims.Sub, nil
		}
	}
	return "", errors.New("not a JSON Web Token with a subject")
}

// greet makes a first call for a user, who exists from then on.
func (w *world) greet(ctx context.Context, p *person) error {
	return w.call(ctx, p, chatv1connect.ChatServiceListChatsProcedure, &chatv1.ListChatsRequest{PageSize: 1},
		&chatv1.ListChatsResponse{})
}

// gather makes the chats: everybody has about the same number.
func (w *world) gather(ctx context.Context) error {
	r := w.run
	chats := r.Chats
	if chats == 0 { // of clients that come and go: each is in one
		chats = len(w.people) / r.Members
	}
	w.groups = make([]*group, chats)
	return each(chats, setupCallers, func(i int) error {
		g := &group{}
		var ids []string
		for j := range r.Members {
			p := w.people[(i*r.Members+j)%len(w.people)]
			g.members = append(g.members, p)
			ids = append(ids, p.name)
		}
		var res chatv1.CreateChatResponse
		err := w.call(ctx, g.members[0], chatv1connect.ChatServiceCreateChatProcedure, &chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: fmt.Sprint("load ", i), MemberIds: ids[1:]}, &res)
		g.id = res.GetOverview().GetChat().GetChatId()
		w.groups[i] = g
		return err
	})
}

// call makes a call that is not measured.
func (w *world) call(ctx context.Context, p *person, procedure string, req, res proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	message, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	answer, err := w.pool.Call(ctx, p.token, procedure, message)
	if err != nil {
		return err
	}
	return proto.Unmarshal(answer, res)
}

// connect opens the connections of all users.
func (w *world) connect(ctx context.Context) error {
	per := w.run.PerConnection
	n := (len(w.people) + per - 1) / per
	w.conns = make([]*rpc.Conn, n)
	return each(n, setupCallers, func(i int) (err error) {
		if w.conns[i], err = w.run.target.Dial(ctx); err != nil {
			return err
		}
		for _, p := range w.people[i*per : min((i+1)*per, len(w.people))] {
			if p.conn, p.calls = w.conns[i], w.conns[i]; w.run.HTTP == 1 {
				p.calls = w.pool
			}
		}
		return nil
	})
}

// disconnect ends the connections, and with them all streams.
func (w *world) disconnect() {
	for _, c := range w.conns {
		if c != nil {
			c.Close()
		}
	}
	w.conns = nil
}

func (w *world) close() {
	w.disconnect()
	w.pool.Close()
}

// each calls f(i) for 0 ≤ i < n from a number of goroutines, until one of them fails.
func each(n, workers int, f func(i int) error) error {
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Pointer[error]
	)
	for range min(n, workers) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
