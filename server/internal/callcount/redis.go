package callcount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Names under which a tap of Redis counts beside those of commands.
const (
	RedisAnswers = "(answers)" // bytes only
	RedisTrips   = "(trips)"   // pipelines: commands that came in one piece
)

// Redis taps an address. Requests are named by their command and what key makes
// of its first argument: "SMEMBERS u", "PING".
func Redis(addr string, key func(string) string) (*Tap, error) {
	t := newTap()
	l, err := t.listen()
	if err != nil {
		return nil, err
	}
	t.serve(l, addr, func() session {
		return session{requests: func(in io.Reader, _ io.Writer) error { return t.commands(in, key) },
			answers: t.answers(RedisAnswers)}
	})
	return t, nil
}

var errRESP = errors.New("wiretap: not a command of Redis")

// maxName bounds the arguments that are checked, in bytes.
const maxName = 512

// commands reads commands: arrays of bulk strings.
func (t *Tap) commands(in io.Reader, key func(string) string) error {
	r := bufio.NewReaderSize(in, 64<<10)
	number := func(kind byte) (n int64, size int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, 0, err
		}
		if len(line) < 4 || line[0] != kind || !strings.HasSuffix(line, "\r\n") {
			return 0, 0, errRESP
		}
		n, err = strconv.ParseInt(line[1:len(line)-2], 10, 32)
		return n, len(line), err
	}
	for {
		args, size, err := number('*')
		if err != nil {
			return err
		}
		var name []string
		total := int64(size)
		for range args {
			n, size, err := number('$')
			if err != nil || n < 0 {
				return errors.Join(errRESP, err)
			}
			total += int64(size) + n + 2
			if len(name) < 2 && n <= maxName {
				b := make([]byte, n)
				if _, err := io.ReadFull(r, b); err != nil {
					return err
				}
				name, n = append(name, string(b)), 0
			}
			if _, err := r.Discard(int(n) + 2); err != nil {
				return err
			}
		}
		if len(name) == 0 {
			return fmt.Errorf("%w: no name", errRESP)
		}
		called := strings.ToUpper(name[0])
		if len(name) > 1 {
			called = strings.TrimSpace(called + " " + key(name[1]))
		}
		t.add(called, Count{Calls: 1, Out: total})
		if r.Buffered() == 0 {
			t.add(RedisTrips, Count{Calls: 1})
		}
	}
}
