package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/client/bearer"
	"github.com/parley-chat/parley/server/client/tail"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

const (
	maxPosition = 64 << 20 // bytes of a file with a position
	saveEvery   = time.Second
)

const tailHelp = `  Each line is a parley.delivery.v1.Frame with a message, a membership, a chat or a reset, in protobuf's JSON, from now
  on or from where --position says. Each change comes once and in order of its chat's versions, also when the server
  goes away and comes back; a line with reset says that changes before it are lost, which messages never are.
`

const tailCodes = `  Exit codes: 0 interrupted, or all lines printed; 1 the stream was ended or refused; 2 a mistake in the line.
`

// Tail makes the command that prints a user's stream.
func Tail(config func() (Config, error)) *cobra.Command {
	var o tailOptions
	c := &cobra.Command{
		Use: "tail [USER] [--flags]", Short: "print a user's stream as lines of JSON, while the server runs",
		Long: tailHelp + loginHelp + tailCodes,
	}
	c.Flags().BoolVar(&o.all, "all", false, "begin with the first change of every chat")
	c.Flags().IntVarP(&o.lines, "lines", "n", 0, "end after so many `lines`; 0: when interrupted")
	c.Flags().StringVar(&o.position, "position", "",
		"`file` that keeps the position; the next run resumes from it")
	return command(c, config, o.run)
}

type tailOptions struct {
	all      bool
	lines    int
	position string
}

func (o *tailOptions) run(ctx context.Context, cfg Config, base string, token bearer.Source) error {
	if o.lines < 0 {
		return cmdline.Usagef("lines must not be negative")
	}
	from, err := readPosition(o.position)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	printed, saved, cut := 0, time.Time{}, false
	f, err := tail.New(tail.Config{
		BaseURL: base, Token: token, All: o.all, From: from,
		Emit: func(f *deliveryv1.Frame) error {
			if cut = false; ctx.Err() != nil { // the rest is for the next one
				return ctx.Err()
			}
			if err := printFrame(cfg.Stdout, f); err != nil {
				return err
			}
			if printed++; printed == o.lines {
				cancel()
			}
			return nil
		},
		Saved: func(p tail.Position) error {
			if time.Since(saved) < saveEvery {
				return nil
			}
			saved = time.Now()
			return writePosition(o.position, p)
		},
		Cut: func(err error) {
			if err != nil && !cut { // once for many in a row
				fmt.Fprintf(cfg.Stderr, "parley: the stream was cut: %v; trying again\n", oneLineError(err, base))
			}
			cut = true
		},
	})
	if err != nil {
		return err
	}
	err = f.Run(ctx)
	if serr := writePosition(o.position, f.Position()); serr != nil {
		return serr
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func printFrame(w io.Writer, f *deliveryv1.Frame) error {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(f)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// readPosition reads where to resume; nil, which is now, if there is nothing yet.
func readPosition(path string) (*tail.Position, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &tail.Position{}
	if err := json.NewDecoder(io.LimitReader(f, maxPosition)).Decode(p); err != nil {
		return nil, fmt.Errorf("%s holds no position: %w", path, err)
	}
	return p, nil
}

// writePosition replaces a file, all or nothing.
func writePosition(path string, p tail.Position) error {
	if path == "" || p.Generation == "" {
		return nil
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".position-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is there only if the rest failed
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
