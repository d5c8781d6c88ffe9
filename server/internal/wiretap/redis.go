package wiretap

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

// Redis stands before an address. Requests are named by their command, SMEMBERS.
func Redis(addr string) (*Tap, error) {
	t := newTap()
	l, err := t.listen()
	if err != nil {
		return nil, err
	}
	t.serve(l, addr, func() session {
		return session{requests: t.commands, answers: t.answers(RedisAnswers)}
	})
	return t, nil
}

var errRESP = errors.New("wiretap: not a command of Redis")

// commands reads commands: arrays of bulk strings.
func (t *Tap) commands(in io.Reader, _ io.Writer) error {
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
		name, total := "", int64(size)
		for i := range args {
			n, size, err := number('$')
			if err != nil {
				return err
			}
			total += int64(size) + n + 2
			if i == 0 && n <= 64 {
				b := make([]byte, n)
				if _, err := io.ReadFull(r, b); err != nil {
					return err
				}
				name, n = strings.ToUpper(string(b)), 0
			}
			if _, err := r.Discard(int(n) + 2); err != nil {
				return err
			}
		}
		if name == "" {
			return fmt.Errorf("%w: no name", errRESP)
		}
		t.add(name, Count{Calls: 1, Out: total})
		if r.Buffered() == 0 {
			t.add(RedisTrips, Count{Calls: 1})
		}
	}
}
