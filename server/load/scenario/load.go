// Package scenario drives a running server and measures it: the program "load".
//
// It owns the scenarios, the users and chats that they need, what is checked of each
// delivery, and what is asked of the server's metrics. It knows the server by its public
// contracts only, so that it measures earlier versions too. Calls and streams are package
// rpc's, histograms and reports package figure's.
//
// Concurrency: Run is called once at a time. Within a run senders, readers of connections
// and the progress line share a recorder, whose fields are atomic.
package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/probe"
	"github.com/parley-chat/parley/server/load/rpc"
)

// Config says where a run takes place.
type Config struct {
	// Issue makes a token for a user; it is not called where the options name a file of
	// tokens.
	Issue func(user string) (string, error)
	// DataDir is the directory of the server's data, if it is on this machine.
	DataDir string
	Stdout  io.Writer
}

// run is a load test under way.
type run struct {
	Options
	cfg    Config
	target rpc.Target
	server *probe.Server
	world  *world
	base   time.Time // of the stamps in messages
	show   *probe.Progress
	disk   probe.Disk
}

// round is one measurement of a scenario: what it came to.
type round func(ctx context.Context, n int) (figure.Figures, error)

// Run runs a scenario with options that Parsed has accepted, and prints what came of it. It
// returns an error if not everything that was sent arrived.
func Run(ctx context.Context, cfg Config, o *Options) error {
	var earlier *figure.Report
	if o.Compare != "" {
		var err error
		if earlier, err = figure.Read(o.Compare); err != nil {
			return err
		}
	}
	r := &run{Options: *o, cfg: cfg, base: time.Now(), show: probe.NewProgress(cfg.Stdout, o.Quiet)}
	var err error
	if r.target, err = o.target(); err != nil {
		return err
	}
	r.server = probe.NewServer(o.metricsURL(), r.target.TLS)
	report := &figure.Report{Version: figure.Version, Scenario: o.Scenario, Options: o.line, Server: o.Address,
		Began: time.Now().UTC().Truncate(time.Second), Machine: probe.Machine()}
	if r.world, err = newWorld(ctx, r); err != nil {
		return err
	}
	defer r.world.close()
	r.measureDisk()
	if report.Rounds, err = r.rounds(ctx); err != nil {
		return err
	}
	r.measureDisk()
	r.disk.Report(&report.Machine)
	report.Median = figure.Median(report.Rounds)
	if err := r.print(report, earlier); err != nil {
		return err
	}
	return complete(report)
}

func (r *run) rounds(ctx context.Context) (list []figure.Figures, err error) {
	measure, end, err := scenarios[r.Scenario].begin(ctx, r)
	if end != nil {
		defer end()
	}
	if err != nil {
		return nil, explain(err)
	}
	for n := range r.Rounds {
		f, err := measure(ctx, n)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, explain(err)
		}
		list = append(list, f)
	}
	return list, nil
}

func (r *run) print(report, earlier *figure.Report) error {
	w := r.cfg.Stdout
	m := report.Machine
	fmt.Fprintf(w, "\n%s %s\n%d × %s, %s, %s\n", report.Scenario, strings.Join(report.Options, " "), m.Processors, m.Model,
		m.OS, m.Go)
	if m.Disk != "" {
		fmt.Fprintf(w, "fsync of 4 KB in %s: p50 %s ms, p99 %s ms\n", m.Disk, figure.Format(m.FsyncP50),
			figure.Format(m.FsyncP99))
	}
	if err := r.server.Err(); err != nil {
		fmt.Fprintf(w, "nothing of the server itself: %v\n", err)
	}
	fmt.Fprintln(w)
	err := report.Print(w)
	if r.JSON != "" {
		err = errors.Join(err, report.Write(r.JSON))
	}
	if earlier != nil {
		fmt.Fprintf(w, "\nbeside %s\n\n", r.Compare)
		err = errors.Join(err, figure.Compare(w, earlier, report))
	}
	return err
}

// measureDisk measures the disk of the server's data, if they are here.
func (r *run) measureDisk() {
	if r.cfg.DataDir != "" && r.isHere() {
		r.disk.Measure(r.cfg.DataDir)
	}
}

// complete fails if a round lost something, or was given something twice.
func complete(report *figure.Report) error {
	for n, round := range report.Rounds {
		for _, name := range []string{failedName, missingName, repeatedName} {
			if v, _ := round.Value(name); v > 0 {
				return fmt.Errorf("round %d: %s %s", n+1, figure.Format(v), name)
			}
		}
	}
	return nil
}

// metricsURL is where the server's metrics are.
func (o Options) metricsURL() string {
	address, secure := o.hostPort()
	switch {
	case o.Metrics != "":
		return o.Metrics
	case secure:
		return "https://" + address + "/metrics"
	default:
		return "http://" + address + "/metrics"
	}
}

// target is the server that the options name.
func (o Options) target() (rpc.Target, error) {
	address, secure := o.hostPort()
	t := rpc.Target{Address: address, Protocol: rpc.Protocol(o.Protocol)}
	if !secure {
		return t, nil
	}
	t.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return t, err
		}
		if t.TLS.RootCAs = x509.NewCertPool(); !t.TLS.RootCAs.AppendCertsFromPEM(text) {
			return t, fmt.Errorf("%s holds no certificate", o.CA)
		}
	}
	return t, nil
}

// explain says what helps against errors that a caller makes.
func explain(err error) error {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("%w: is the server running? --addr says where", err)
	case connect.CodeOf(err) == connect.CodeUnauthenticated:
		return fmt.Errorf("the server refused a token: %w: --data-dir must be that server's, "+
			"or --token-file hold tokens of its issuer", err)
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		return fmt.Errorf("%w: few users do here what many do elsewhere: start the server with --limits off --max-requests 0",
			err)
	default:
		return err
	}
}
