// Package restore prepares an installation whose tables were restored, before its processes start:
// Kafka and Redis have a later state than the tables.
//
// It owns what is compared and what is set, in which order. server/docs/backup.md describes the
// other parts, which need no step. The line of history itself is package backend's.
//
// Every step may be repeated. The line of history begins last, so that a run that was cut off leaves
// tables on which no process starts that would not have started before.
//
// Concurrency: Run is called by one goroutine, while no process of the installation runs.
package restore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
	"github.com/parley-chat/parley/server/store"
)

// Errors of Run, with what was found.
var (
	ErrRunning = errors.New("restore: processes of the installation run; stop all servers and workers first")
	ErrTorn    = errors.New("restore: chats whose rows are not of one moment")
	ErrForeign = errors.New("restore: Kafka has the topics of another installation")
)

// Installation is an installation of which no process runs.
type Installation interface {
	// Running names the processes that run all the same.
	Running(ctx context.Context) ([]string, error)
	// Begin begins another line of history under a new generation.
	Begin(ctx context.Context, generation string) error
}

// Config is what to restore. All of it is required but AcceptTorn.
type Config struct {
	Installation Installation
	Store        store.Store
	// CheckTopics returns an error if Kafka lacks topics that the tables say are in use.
	CheckTopics func(ctx context.Context) error
	// Slots is what Kafka says of durable topics; none where they are not in use.
	Slots func(ctx context.Context) ([]inspect.Slot, error)
	// Records calls each with the declared topic and the key of every record of an event that came to
	// Kafka at a time or later.
	Records func(ctx context.Context, since time.Time, each func(topic, key string)) error
	Clock   func() time.Time
	Execute bool // otherwise nothing is changed
	// AcceptTorn begins the line although chats are torn.
	AcceptTorn bool
	Out        io.Writer
}

// Run prepares an installation, and says in lines what it found and did. Errors fit into one line.
func Run(ctx context.Context, cfg Config) error {
	say := func(format string, args ...any) { fmt.Fprintf(cfg.Out, format+"\n", args...) }
	running, err := cfg.Installation.Running(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("%w: %s", ErrRunning, strings.Join(running, ", "))
	}
	if err := cfg.CheckTopics(ctx); err != nil {
		return err
	}
	newest, err := findTorn(ctx, cfg, say)
	if err != nil {
		return err
	}
	slots, err := cfg.Slots(ctx)
	if err == nil {
		err = topics(ctx, cfg, slots, say)
	}
	if err != nil {
		return err
	}
	generation := rand.Text()
	if err := again(ctx, cfg, newest, generation, say); err != nil {
		return err
	}
	if !cfg.Execute {
		say("nothing was changed; --execute begins another line of history, and every client starts over")
		return nil
	}
	if err := cfg.Installation.Begin(ctx, generation); err != nil {
		return err
	}
	say("generation %s has begun; start workers and servers", generation)
	return nil
}
