package alerts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
)

// extremes are the drills of a rule about the greatest or least value of each process.
func extremes(r rule, wait time.Duration) []scenario {
	label, labels := "parley", []string(nil)
	if second := r.labels[1]; second != "job" { // which every series has
		label, labels = "/data/x", []string{fmt.Sprintf(`%s="/data/x"`, second)}
	}
	if first := r.labels[0]; first != "instance" { // which every series has
		labels = append(labels, fmt.Sprintf(`%s="a:8080"`, first))
	}
	beyond := r.above + 1
	if r.kind == "min" {
		beyond = r.above - 1
	}
	quiet := []check{{at: step - evaluate}, {at: step + wait + 5*slowest}}
	loud := []check{{at: step - evaluate}, {at: step + wait + slowest, fires: true, label: label}}
	if wait > 0 {
		loud = append(loud, check{at: step + wait - evaluate})
	}
	list := []scenario{
		{"at it", r, pair(r.metric, constant(r.above), constant(r.above), labels...), quiet},
		{"beyond", r, pair(r.metric, at(step, r.above, beyond), constant(r.above), labels...), loud},
	}
	if wait >= 2*slowest {
		list = append(list, scenario{"for a moment", r, pair(r.metric, func(now time.Duration) (float64, bool) {
			if now >= step && now < step+wait-slowest {
				return beyond, true
			}
			return r.above, true
		}, constant(r.above), labels...), quiet})
	}
	return list
}

// of returns the series of the calls of one process: so many a second, of which a share is bad.
func (b burn) of(metric, process string, rate float64, bad func(time.Duration) float64) (list []series) {
	const tick = 15 * time.Second
	count := func(share func(float64) float64) func(time.Duration) (float64, bool) {
		var sums []float64 // by tick
		return func(now time.Duration) (float64, bool) {
			for len(sums) <= int(now/tick) {
				last := 0.0
				if n := len(sums); n > 0 {
					last = sums[n-1] + rate*tick.Seconds()*share(bad(time.Duration(n)*tick))
				}
				sums = append(sums, last)
			}
			return float64(int(sums[now/tick])), true
		}
	}
	all := func(float64) float64 { return 1 }
	good := func(bad float64) float64 { return 1 - bad }
	name := func(suffix string, labels ...string) string {
		return of(metric+suffix, process, append([]string{fmt.Sprintf("procedure=%q", b.procedure)}, labels...)...)
	}
	other := of(metric+"_count", process, `procedure="/parley.chat.v1.ChatService/GetChat"`, `code="internal"`)
	list = append(list, series{other, count(all)}) // is about other calls
	if b.within != "" {
		return append(list, series{name("_count", `code="ok"`), count(all)},
			series{name("_bucket", `code="ok"`, `le="10"`), count(all)},
			series{name("_bucket", `code="ok"`, fmt.Sprintf("le=%q", b.within)), count(good)},
			series{name("_bucket", `code="unavailable"`, fmt.Sprintf("le=%q", b.within)), count(all)})
	}
	share := func(bad float64) float64 { return bad }
	return append(list, series{name("_count", `code="ok"`), count(good)},
		series{name("_count", fmt.Sprintf("code=%q", strings.Split(b.bad, "|")[2])), count(share)},
		series{name("_count", `code="resource_exhausted"`), count(func(float64) float64 { return 0.1 })}) // by limits, which is no failure
}

// burns are the drills of a rule about how fast a share of bad calls is used up.
func burns(r rule) (list []scenario) {
	b := r.burn
	since := func(from time.Duration, share float64) func(time.Duration) float64 {
		return func(now time.Duration) float64 {
			if now > from {
				return share
			}
			return 0
		}
	}
	none := func(time.Duration) float64 { return 0 }
	add := func(name string, rate float64, bad func(time.Duration) float64, checks ...check) {
		list = append(list, scenario{name, r, append(b.of(r.metric, "a", rate, bad),
			b.of(r.metric, "b", rate/10, none)...), checks})
	}
	mixed := 1.1 // the second process has a tenth of the calls, none of them bad
	if r.kind == "failing" {
		mixed *= 1.1 // and a tenth is refused in both
	}
	full := step + b.long + 2*slowest
	add("below", 100, since(step, 0.9*mixed*r.above), check{at: step}, check{at: full})
	add("above", 100, since(step, 1.2*mixed*r.above), check{at: step}, check{at: full, fires: true})
	add("everything", 100, since(step, 1), check{at: step}, check{at: step + b.short, fires: true})
	add("over", 100, func(now time.Duration) float64 {
		if now > step && now <= step+b.short {
			return 1
		}
		return 0
	}, check{at: step + b.short, fires: true}, check{at: step + 2*b.short + 3*slowest})
	began := step + b.long
	add("a moment", 100, func(now time.Duration) float64 { // much in the short window, little in the long one
		if now > began && now <= began+b.short {
			return 1.5 * mixed * r.above
		}
		return 0
	}, check{at: began + b.short}, check{at: began + 2*b.short})
	add("few calls", 0.8*b.calls/b.long.Seconds()/mixed, since(step, 1), check{at: step + b.short}, check{at: full})
	return list
}

// The promises, as server/deploy/README.md states them: which calls, which failures, how fast,
// and at which rates of use an alert fires.
func TestPromises(t *testing.T) {
	type promise struct {
		metric, procedure, within string
	}
	for name, want := range map[string]promise{
		"send":      {telemetry.RPCTime, "/parley.message.v1.MessageService/SendMessage", "0.25"},
		"subscribe": {telemetry.StreamFirst, "/parley.delivery.v1.DeliveryService/Subscribe", "0.5"},
		"sync":      {telemetry.RPCTime, "/parley.delivery.v1.DeliveryService/Sync", "0.5"},
	} {
		for _, rate := range []struct {
			suffix, severity string
			failing, slow    float64
			short, long      time.Duration
		}{
			{"", "sev1", 14.4 * 0.001, 14.4 * 0.01, 5 * time.Minute, time.Hour},
			{"_slowly", "sev2", 6 * 0.001, 6 * 0.01, 30 * time.Minute, 6 * time.Hour},
		} {
			failing, slow := named(t, name+"_failing"+rate.suffix), named(t, name+"_slow"+rate.suffix)
			for _, r := range []rule{failing, slow} {
				if r.metric != want.metric || r.burn.procedure != want.procedure || r.burn.short != rate.short ||
					r.burn.long != rate.long || r.Labels["severity"] != rate.severity || r.burn.calls != 100 {
					t.Errorf("%s: %s", r.Alert, r.Expr)
				}
			}
			if failing.kind != "failing" || !near(failing.above, rate.failing) ||
				failing.burn.bad != "internal|unknown|unavailable|deadline_exceeded|data_loss" {
				t.Errorf("%s: %s", failing.Alert, failing.Expr)
			}
			if slow.kind != "slow" || !near(slow.above, rate.slow) || slow.burn.within != want.within {
				t.Errorf("%s: %s", slow.Alert, slow.Expr)
			}
		}
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// Of the machine: from when on disks, certificates and processes raise an alert.
func TestMachineThresholds(t *testing.T) {
	for name, want := range map[string]struct {
		kind, metric string
		above        float64
	}{
		"process_down": {"min", "up", 1}, "disk_full": {"max", telemetry.DiskFull, 0},
		"disk_fills": {"min", telemetry.DiskHoursLeft, 24}, "disk_fills_critical": {"min", telemetry.DiskHoursLeft, 4},
		"disk_slow": {"max", telemetry.DiskSlowest, 1}, "disk_hangs": {"max", telemetry.DiskSlowest, 5},
		"certificate_expires":          {"min", telemetry.CertificateDays, 14},
		"certificate_expires_critical": {"min", telemetry.CertificateDays, 3},
		"backup_old":                   {"max", telemetry.BackupOverdue, 3600},
	} {
		if r := named(t, name); r.kind != want.kind || r.metric != want.metric || r.above != want.above {
			t.Errorf("%s: %s", name, r.Expr)
		}
	}
}
