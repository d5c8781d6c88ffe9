package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/telemetry"
)

// Exit codes of check.
const (
	exitClean     = 0 // nothing is wrong, or everything was repaired
	exitFindings  = 1 // something is wrong
	exitUnchecked = 2 // nobody knows
)

const checkMore = `  It reads everything: all checksums of the store and the event log, and whether heads, events, messages,
  members, counts, indexes and the outbox agree. A line for each finding says where it is, what is wrong and
  what helps. With --repair it writes again what can be derived from the events and deletes nothing else; it
  may be cut off and repeated. The server must not run.
  Exit codes: 0 nothing is wrong, or everything was repaired; 1 something is wrong; 2 it could not be checked.
`

// checkData checks the data directory of a server that does not run.
func checkData(ctx context.Context, cfg Config, stdout, stderr io.Writer) (int, error) {
	report, err := checkDirectory(ctx, cfg, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "parley: not checked: %v\n", err)
		return exitUnchecked, nil
	}
	fmt.Fprintf(stdout, "%d chats, %d messages, %d events, %d users; %d rows in %s: ", report.Chats, report.Messages, report.Events, report.Users, report.Rows, report.Took.Round(time.Millisecond))
	switch left := report.Found - report.Fixed; {
	case report.Found == 0:
		fmt.Fprintln(stdout, "nothing is wrong")
	case left == 0:
		fmt.Fprintf(stdout, "%d findings, all repaired\n", report.Found)
	case report.Fixed > 0:
		fmt.Fprintf(stdout, "%d findings, %d repaired\n", report.Found, report.Fixed)
		return exitFindings, nil
	default:
		fmt.Fprintf(stdout, "%d findings\n", report.Found)
		return exitFindings, nil
	}
	return exitClean, nil
}

func checkDirectory(ctx context.Context, cfg Config, stdout, stderr io.Writer) (report check.Report, err error) {
	if cfg.Engine.Distributed() {
		return report, errors.New("check is for a data directory; in the distributed mode the reconciler compares the tables while they are in use")
	}
	ec := cfg.Engine
	ec.Logger = telemetry.NewLogger(stderr, cfg.LogJSON)
	data, err := engine.OpenOffline(ec, cfg.repair)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	_, key := cfg.readKey()
	return check.Run(ctx, check.Config{Data: data, Repair: cfg.repair, Clock: time.Now, Out: stdout, Key: key})
}
