// Package gates drives servers of its own with durable topics and searches what they hold:
// the command "load gates".
//
// A gate is a claim: so many groups at such a rate, or what becomes of others while a group
// is dead, reads a backlog or is very busy. Those of a rate raise it until a threshold
// breaks, and say where. Each gate decides. It holds; or it is broken, and Run fails; or its
// figure is not reached, because the machine had no processor left for it. Messages that do
// not arrive break a gate on any machine. The package owns the gates, their thresholds and
// the table of what came of them. It knows a server by its contracts only; it starts one for
// each gate, as a process on an empty directory, and asks its metrics and checks its files.
//
// Concurrency: Run is called once at a time. Within a gate publishers and consumers share a
// load and its phase, whose fields are atomic.
package gates

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/gates/rig"
	"github.com/parley-chat/parley/server/load/probe"
)

// Config says what a run stands on.
type Config struct {
	Program string // of the servers
	Dir     string // in which they have their data; empty: the system's for such files
	Stdout  io.Writer
	Notes   io.Writer // what happens meanwhile
}

// Options are what a user can choose.
type Options struct {
	Gates []string      // names; all if there are none
	Short bool          // small rates and short times: whether it works, not how far
	Hold  time.Duration // of a claimed rate; others are held for a tenth of it
	All   bool          // a figure that is not reached breaks its gate
}

// gate is a claim.
type gate struct {
	claim    string
	blocking bool // the source document releases nothing while it does not hold
	// fallsShort says that the source document expects the rate not to hold: then its limit is what counts.
	fallsShort bool
	run        func(ctx context.Context, b *bench) (verdict, error)
}

// verdict is what came of a gate.
type verdict struct {
	tried, result, limit string
	broken               []string // thresholds
	missed               []string // figures that the machine is too small for
}

// bench is a gate under way.
type bench struct {
	cfg    Config
	opt    Options
	server *rig.Server
	disk   float64 // bytes a second
	name   string
	gate   gate
}

var gates = map[string]gate{
	"W01": {claim: "per message, 4 groups, 10,000/s, 1 h", blocking: true, run: rates(perMessage, 10_000, 4)},
	"W02": {claim: "per message, 8 and 16 groups, 10,000/s, 1 h", blocking: true, run: rates(perMessage, 10_000, 8, 16)},
	"W03": {claim: "per message, 32 groups, 10,000/s: expected to fail", fallsShort: true,
		run: rates(perMessage, 10_000, 32)},
	"W03-watermark": {claim: "watermark, 16 and 64 groups, 10,000/s, 1 h", blocking: true,
		run: rates(watermark, 10_000, 16, 64)},
	"W03-100": {claim: "watermark, 100 groups, 30,000/s, 1 h", blocking: true, run: rates(watermark, 30_000, 100)},
	"W04": {claim: "3 groups, 1,000/s: one is killed after 5 min, dead within 5 min, revived at 20 min with at most " +
		"1/9 of what it missed, steady at 30 min", blocking: true, run: killAndRevive},
	"W05": {claim: "a backfill of 5,000,000 beside 500 calls/s of others, aggressive: p95 of these below 100 ms, at most 30 min",
		blocking: true, run: backfill},
	"W06": {claim: "A 10,000/s into 10 groups beside B 10/s into 2, 1 h: p95 of B below 50 ms, less than 10 s behind",
		run: isolation},
	"R1": {claim: "2,000 members heartbeat each 30 s, 100 of each group, beside 10,000/s into 16 groups: none dies, " +
		"p99 below 100 ms", run: heartbeats},
	"D17": {claim: "16 groups acknowledge 10,000/s: p99 below 10 ms", run: acknowledgements},
	"P13": {claim: "removals raise the p95 from publish to consumer by at most 20 % and take 5 % of the rate; those of " +
		"100,000 messages at once 60 % and 20 %, for 2 s", run: removals},
	"W09":       {claim: "watermark, 50 groups, 30,000/s", run: rates(watermark, 30_000, 50)},
	"hot-topic": {claim: "a topic with 99 % of the traffic leaves the p99 of others within 2×", run: hotTopic},
	"idle": {claim: "10,000 topics, 100,000 subscriptions: start below 5 s, idle below 2 % of a processor",
		run: idle},
}

// Names are the gates in order.
func Names() []string { return slices.Sorted(maps.Keys(gates)) }

// Help puts a line for each gate into a text with one place for them.
func Help(text string) string {
	var b strings.Builder
	for _, name := range Names() {
		fmt.Fprintf(&b, "    %-14s %s\n", name, gates[name].claim)
	}
	return fmt.Sprintf(text, &b)
}

// Check refuses options that cannot be.
func (o Options) Check() error {
	for _, name := range o.Gates {
		if _, ok := gates[name]; !ok {
			return fmt.Errorf("unknown gate %.40q: there are %s", name, strings.Join(Names(), ", "))
		}
	}
	if o.Hold < time.Second || o.Hold > time.Hour {
		return fmt.Errorf("--hold must be 1s to 1h, not %v", o.Hold)
	}
	return nil
}

// Run runs gates and prints a table, whose last row decides on a release (W08). It returns an error if a gate is
// broken.
func Run(ctx context.Context, cfg Config, o Options) error {
	names := o.Gates
	if len(names) == 0 {
		names = Names()
	}
	dir, err := os.MkdirTemp(cfg.Dir, "gates-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	disk, err := rig.DiskSpeed(dir)
	if err != nil {
		return err
	}
	var sync probe.Disk
	sync.Measure(dir)
	m := probe.Machine()
	sync.Report(&m)
	fmt.Fprintf(cfg.Stdout, "%d × %s, %s; the disk writes %.0f MB/s, and syncs 4 KB in p50 %s ms, p99 %s ms. "+
		"Clients and server share the machine; a rate is held for %v.\n\n", m.Processors, m.Model, m.OS, disk/1e6,
		figure.Format(m.FsyncP50), figure.Format(m.FsyncP99), o.Hold)
	fmt.Fprintf(cfg.Stdout, "| gate | claimed | tried here | result | limit found |\n|---|---|---|---|---|\n")
	var broken error
	verdicts := map[string]verdict{}
	for _, name := range names {
		v, err := one(ctx, &bench{cfg: cfg, opt: o, disk: disk, name: name, gate: gates[name]}, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(cfg.Stdout, "| %s | %s | %s | %s | %s |\n", name, gates[name].claim, v.tried, v.text(), v.limit)
		verdicts[name] = v
		if len(v.broken) > 0 {
			broken = errors.Join(broken, fmt.Errorf("%s: %s", name, strings.Join(v.broken, "; ")))
		}
	}
	fmt.Fprintf(cfg.Stdout, "| W08 | a release only if all blocking gates hold | – | %s | – |\n", decide(verdicts))
	return broken
}

// text is the result, and what of it breaks a threshold or is not reached.
func (v verdict) text() string {
	var marks []string
	if len(v.broken) > 0 {
		marks = append(marks, "**broken: "+strings.Join(v.broken, "; ")+"**")
	}
	if len(v.missed) > 0 {
		marks = append(marks, "**not reached: "+strings.Join(v.missed, "; ")+"**")
	}
	return strings.Join(append(marks, v.result), " ")
}

// broke records a threshold that breaks.
func (v *verdict) broke(yes bool, format string, args ...any) {
	if yes {
		v.broken = append(v.broken, fmt.Sprintf(format, args...))
	}
}

// short records a figure that falls short: it breaks the gate, unless the machine was scarce. busy is
// the part of the processors that was used.
func (v *verdict) short(yes, scarce bool, busy float64, format string, args ...any) {
	list := &v.broken
	if scarce {
		list = &v.missed
	}
	if yes {
		*list = append(*list, fmt.Sprintf(format+", processors busy %.0f %%", append(args, 100*busy)...))
	}
}

// decide is the decision on a release: yes if every blocking gate has run, at the source document's figures, and holds.
func decide(verdicts map[string]verdict) string {
	var against []string
	for _, name := range Names() {
		if !gates[name].blocking {
			continue
		}
		switch v, ran := verdicts[name]; {
		case !ran:
			against = append(against, name+" has not run")
		case len(v.broken) > 0:
			against = append(against, name+" is broken")
		case len(v.missed) > 0:
			against = append(against, name+" is not reached")
		}
	}
	if len(against) == 0 {
		return "yes"
	}
	return "no: " + strings.Join(against, ", ")
}

// one runs a gate on a server of its own.
func one(ctx context.Context, b *bench, dir string) (v verdict, err error) {
	if dir, err = os.MkdirTemp(dir, b.name+"-*"); err != nil {
		return v, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if b.server, err = rig.Start(ctx, b.cfg.Program, dir); err != nil {
		return v, err
	}
	defer func() { b.server.Kill() }() // its data are thrown away; a gate may have started another one
	b.note("starts")
	if v, err = b.gate.run(ctx, b); err == nil {
		err = ctx.Err()
	}
	if b.opt.Short { // smaller figures say nothing about the claim
		v.missed = append(v.missed, "a short run")
	} else if b.opt.All {
		v.broken, v.missed = append(v.broken, v.missed...), nil
	}
	return v, err
}

// note reports progress to the person who watches.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.cfg.Notes, "%s %s: %s\n", time.Now().Format(time.TimeOnly), b.name, fmt.Sprintf(format, args...))
}

// scaled is a number of a full run, or the one of a short run.
func scaled[T any](b *bench, full, short T) T {
	if b.opt.Short {
		return short
	}
	return full
}
