package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

const backupHelp = `  It copies the data directory, while the server runs or not, as it is at one moment: the store, the event
  log and the keys. DIR gets a directory for each backup, which needs room only for what the one before does
  not have; a name that ends in .tar.zst gets one compressed file. Every file is read again before the backup
  counts. s3://BUCKET/PREFIX stores it in S3, or in another server with the same interface (AWS_ENDPOINT_URL):
  what an earlier backup has is not sent again, and S3 compares what arrives with its checksum. Credentials and
  region come from where AWS's own programs read them: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
  AWS_PROFILE, or the role of the machine. A backup has the keys of the installation: store it as you store them.
`

const restoreHelp = `  BACKUP is a backup or an archive, or a directory of backups or s3://BUCKET/PREFIX, of which the newest is
  taken. The data directory (--data-dir) must be missing or empty, and no server may run on it. Every file is
  compared with its checksum. Clients synchronise again by themselves at the next start; what was written after
  the backup is gone.
`

func (p *commandLine) backupCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "backup DIR|FILE|s3://BUCKET/PREFIX", Short: "copy the data directory, also while the server runs",
		Long: backupHelp, Args: cobra.ArbitraryArgs,
	}
	keep := c.Flags().Int("keep", 0, "how many `backups` of this data directory stay there; 0: all")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.config()
		if err != nil {
			return err
		}
		if len(args) != 1 || *keep < 0 {
			return cmdline.Usagef("backup needs one directory, a file that ends in .tar.zst, or s3://BUCKET/PREFIX, and --keep of 0 or more")
		}
		return p.backUp(c.Context(), cfg, args[0], *keep)
	}
	return c
}

func (p *commandLine) restoreCommand() *cobra.Command {
	return &cobra.Command{Use: "restore BACKUP", Short: "put a backup into an empty data directory", Long: restoreHelp,
		Args: cobra.ArbitraryArgs, RunE: func(c *cobra.Command, args []string) error {
			cfg, err := p.config()
			if err != nil {
				return err
			}
			if len(args) != 1 {
				return cmdline.Usagef("restore needs one backup")
			}
			return p.restore(c.Context(), cfg, args[0])
		}}
}

// backUp makes a backup of the files of one moment: those that the running server shows, or
// those that are there while no server can start.
func (p *commandLine) backUp(ctx context.Context, cfg Config, to string, keep int) error {
	if cfg.distributed() {
		return backup.ErrElsewhere
	}
	lock, err := backend.Lock(cfg.DataDir)
	if errors.Is(err, backend.ErrRunning) {
		return p.backUpRunning(ctx, cfg, to, keep)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	list, err := backup.Describe(cfg.DataDir, time.Now())
	if err != nil {
		return err
	}
	return p.write(ctx, backup.Options{From: cfg.DataDir, Of: list, To: to, Keep: keep})
}

// backUpRunning copies what the server shows for as long as its call is open.
func (p *commandLine) backUpRunning(ctx context.Context, cfg Config, to string, keep int) error {
	operator, err := p.operator()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	hc, url := operator.HTTP(operator.Address)
	tokens := bearer.New(operator.Tokens(operator.OperatorName()))
	service := opsv1connect.NewBackupServiceClient(hc, url, connect.WithInterceptors(tokens))
	stream, err := service.TakeSnapshot(ctx, &opsv1.TakeSnapshotRequest{})
	if err != nil {
		return errors.New(opsctl.Explain(err))
	}
	if !stream.Receive() {
		return errors.New(opsctl.Explain(stream.Err()))
	}
	dir := stream.Msg().GetPath()
	if !within(dir, cfg.DataDir) {
		return fmt.Errorf("the server at %s has another data directory: it shows %s", operator.Address, dir)
	}
	list, err := backup.ReadList(dir)
	if err != nil {
		return err
	}
	go func() { // the files are there as long as the server says so
		for stream.Receive() {
		}
		stop(errors.New("the server has ended before the backup was complete"))
	}()
	err = p.write(ctx, backup.Options{From: dir, Of: list, To: to, Keep: keep})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// within reports whether a directory is directly in the data directory. It compares files,
// because a path may contain symbolic links.
func within(dir, dataDir string) bool {
	a, err := os.Stat(filepath.Dir(dir))
	if err != nil {
		return false
	}
	b, err := os.Stat(dataDir)
	return err == nil && os.SameFile(a, b)
}

func (p *commandLine) write(ctx context.Context, o backup.Options) error {
	bar := cmdline.NewBar(p.stdout)
	o.Progress = func(done, total int64) { bar.Show(done, total, "of "+size(uint64(total/2))+" copied and verified") }
	r, err := backup.Write(ctx, o)
	bar.End()
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s: %d files, %s, of which %s are new", r.Path, r.Files, size(uint64(r.Bytes)),
		size(uint64(r.Written)))
	if r.Removed > 0 {
		fmt.Fprintf(p.stdout, "; %d older backups removed", r.Removed)
	}
	fmt.Fprintln(p.stdout)
	return nil
}

func (p *commandLine) restore(ctx context.Context, cfg Config, from string) error {
	if cfg.distributed() {
		return backup.ErrElsewhere
	}
	path, err := backup.Find(ctx, from)
	if err != nil {
		return err
	}
	bar := cmdline.NewBar(p.stdout)
	show := func(done, total int64) { bar.Show(done, total, "of "+size(uint64(total))+" restored") }
	ec := cfg.Backend
	ec.Logger = telemetry.NewLogger(p.stderr, cfg.LogFormat == "json")
	err = backup.Restore(ctx, path, cfg.DataDir, show, func(dir string) error { return backend.PrepareRestored(ec, dir) })
	bar.End()
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s is restored into %s: start the server\n", path, absolute(cfg.DataDir))
	return nil
}
