package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/telemetry"
)

// Exit codes of check.
const (
	exitClean     = 0 // nothing is wrong, or everything was repaired
	exitFindings  = 1 // something is wrong
	exitUnchecked = 2 // the check could not be made
)

const checkHelp = `  It reads everything: all checksums of the store and the event log, and whether heads, events, messages,
  members, counts, indexes and the outbox agree. A line for each finding says where it is, what is wrong and
  what helps. With --repair it builds a damaged store again from all that can be read, puts back events that
  only the event log has, and writes again what can be derived from the events; it deletes nothing else, keeps
  the damaged store, and may be cut off and repeated. The server must not run. With BACKUP it checks that one
  instead, and first compares all files with their checksums. An archive, or a backup in S3, is unpacked in the
  directory for temporary files.
  Exit codes: 0 nothing is wrong, or everything was repaired; 1 something is wrong; 2 it could not be checked.
`

func (p *commandLine) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "check [--repair [--from BACKUP]] [BACKUP]", Short: "check the data of a server that does not run, and repair what can be derived",
		Long: checkHelp,
		Args: cobra.ArbitraryArgs,
	}
	repair := c.Flags().Bool("repair", false, "write again what can be derived")
	from := c.Flags().String("from", "", "a `backup` that has events which neither the store nor the event log has")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return cmdline.Usagef("check takes --repair or a backup: %w", err)
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.config()
		if err != nil {
			return err
		}
		if *from != "" && !*repair {
			return cmdline.Usagef("--from is for a repair: check --repair --from BACKUP")
		}
		if len(args) > 1 || len(args) == 1 && *repair {
			return cmdline.Usagef("check takes --repair or one backup, not %.40q", args[len(args)-1])
		}
		if len(args) == 1 {
			return cmdline.ExitCode(checkBackup(c.Context(), cfg, args[0], p.stdout, p.stderr))
		}
		return cmdline.ExitCode(checkData(c.Context(), cfg, *repair, *from, p.stdout, p.stderr))
	}
	return c
}

// checkBackup checks a backup without restoring it, and returns the exit code.
func checkBackup(ctx context.Context, cfg Config, path string, stdout, stderr io.Writer) int {
	if cfg.distributed() { // the backup is of an embedded server all the same
		fmt.Fprintln(stderr, "parley: not checked: check the backup without the settings of the distributed mode")
		return exitUnchecked
	}
	dir, remove, err := openBackup(ctx, path)
	if err != nil {
		fmt.Fprintf(stderr, "parley: not checked: %v\n", err)
		if errors.Is(err, backup.ErrDamaged) {
			return exitFindings
		}
		return exitUnchecked
	}
	defer remove()
	mode := *cfg.Backend.Embedded
	mode.DataDir = dir
	cfg.DataDir, cfg.Backend.Embedded = dir, &mode
	return checkData(ctx, cfg, false, "", stdout, stderr)
}

// openBackup compares a backup with its list, and returns where its files are.
func openBackup(ctx context.Context, path string) (dir string, remove func(), err error) {
	if path, err = backup.Find(ctx, path); err != nil {
		return "", nil, err
	}
	if !backup.Packed(path) {
		return path, func() {}, backup.Verify(ctx, path, nil)
	}
	tmp, err := os.MkdirTemp("", "parley-check-*")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(tmp) }
	dir = filepath.Join(tmp, "data")
	if err := backup.Extract(ctx, path, dir, nil); err != nil {
		remove()
		return "", nil, err
	}
	return dir, remove, nil
}

// checkData checks the data directory of a server that does not run, and returns the exit
// code.
func checkData(ctx context.Context, cfg Config, repair bool, from string, stdout, stderr io.Writer) int {
	report, err := checkDirectory(ctx, cfg, repair, from, stdout, stderr)
	if errors.Is(err, backend.ErrDamaged) || errors.Is(err, backend.ErrLost) {
		fmt.Fprintf(stdout, "%s: %v\n", check.FileDamaged, err)
		return exitFindings
	}
	if err != nil {
		fmt.Fprintf(stderr, "parley: not checked: %v\n", err)
		return exitUnchecked
	}
	fmt.Fprintf(stdout, "%d chats, %d messages, %d events, %d users; %d topics, %d messages in them; %d rows in %s: ",
		report.Chats, report.Messages, report.Events, report.Users, report.Topics, report.TopicMessages, report.Rows,
		report.Took.Round(time.Millisecond))
	switch left := report.Found - report.Fixed; {
	case report.Found == 0:
		fmt.Fprintln(stdout, "nothing is wrong")
	case left == 0:
		fmt.Fprintf(stdout, "%d findings, all repaired\n", report.Found)
	case report.Fixed > 0:
		fmt.Fprintf(stdout, "%d findings, %d repaired\n", report.Found, report.Fixed)
		return exitFindings
	default:
		fmt.Fprintf(stdout, "%d findings\n", report.Found)
		return exitFindings
	}
	return exitClean
}

// openCopy opens the store of a backup, if one is named.
func openCopy(ctx context.Context, cfg backend.Config, from string) (data *backend.Offline, release func(), err error) {
	if from == "" {
		return nil, func() {}, nil
	}
	dir, remove, err := openBackup(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	mode := *cfg.Embedded
	mode.DataDir = dir
	cfg.Embedded = &mode
	if data, err = backend.OpenOffline(cfg, false); err != nil {
		remove()
		return nil, nil, fmt.Errorf("open the backup %s: %w", from, err)
	}
	return data, func() { _ = data.Close(); remove() }, nil
}

// repairStore builds the store again if it is damaged, and says what that has cost. The check
// restores the events that the new store lacks, as far as the event log has them, and names the lost
// ones.
func repairStore(ctx context.Context, cfg backend.Config, out io.Writer) error {
	r, err := backend.Repair(ctx, cfg)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the check says that there is none
	}
	if err != nil || r.Why == nil {
		return err
	}
	fmt.Fprintf(out, "store: %v\n", r.Why)
	for _, line := range r.Lost {
		fmt.Fprintf(out, "unreadable: %s\n", line)
	}
	fmt.Fprintf(out, "store: another was built from %d rows that can be read; the damaged one is %s: remove it when you do not need it any more\n",
		r.Rows, r.Aside)
	return nil
}

func checkDirectory(
	ctx context.Context, cfg Config, repair bool, from string, stdout, stderr io.Writer,
) (report check.Report, err error) {
	if cfg.distributed() {
		return report, errors.New("check is for a data directory; in the distributed mode the reconciler compares the tables while they are in use")
	}
	ec := cfg.Backend
	ec.Logger = telemetry.NewLogger(stderr, cfg.LogFormat == "json")
	older, release, err := openCopy(ctx, ec, from)
	if err != nil {
		return report, err
	}
	defer release()
	if repair {
		if err := repairStore(ctx, ec, stdout); err != nil {
			return report, err
		}
	}
	data, err := backend.OpenOffline(ec, repair)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	_, key := cfg.readKey()
	return check.Run(ctx, check.Config{Data: data, Backup: older, Repair: repair, Clock: time.Now, Out: stdout, Key: key})
}
