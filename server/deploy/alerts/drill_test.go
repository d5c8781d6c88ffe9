package alerts

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// step is when what a drill is about begins.
const step = 10 * time.Minute

// slowest is the longest interval of scraping, and what an alert may be late for it.
const slowest = time.Minute

// aged is how long a process runs that is not young.
const aged = 1_000_000

// of names the series of a process: two of them are scraped.
func of(metric, process string, labels ...string) string {
	return fmt.Sprintf("%s{%s}", metric,
		strings.Join(append([]string{fmt.Sprintf(`instance="%s:8080",job="parley"`, process)}, labels...), ","))
}

func constant(v float64) func(time.Duration) (float64, bool) {
	return func(time.Duration) (float64, bool) { return v, true }
}

// at is before until a time, and after from then on.
func at(when time.Duration, before, after float64) func(time.Duration) (float64, bool) {
	return func(now time.Duration) (float64, bool) {
		if now < when {
			return before, true
		}
		return after, true
	}
}

// pair is a metric of two processes that have run for long.
func pair(metric string, a, b func(time.Duration) (float64, bool), labels ...string) []series {
	return []series{
		{of(metric, "a", labels...), a}, {of(metric, "b", labels...), b},
		{of("process_start_time_seconds", "a"), constant(-aged)}, {of("process_start_time_seconds", "b"), constant(-aged)},
	}
}

// rising grows by n in each window, evenly, from step on.
func rising(n float64, window time.Duration) func(time.Duration) (float64, bool) {
	return func(now time.Duration) (float64, bool) {
		return float64(int(3 + n*max(0, now-step).Seconds()/window.Seconds())), true
	}
}

// values are the drills of a rule about a value.
func values(r rule, wait time.Duration) (list []scenario) {
	quiet := []check{{at: step - evaluate}, {at: step + wait + 5*slowest}}
	loud := []check{{at: step - evaluate}, {at: step + wait + slowest, fires: true}}
	if wait > 0 {
		loud = append(loud, check{at: step + wait - evaluate})
	}
	add := func(name string, checks []check, a, b func(time.Duration) (float64, bool)) {
		list = append(list, scenario{name, r, pair(r.metric, a, b), checks})
	}
	add("at it", quiet, at(step, 0, r.above), constant(0))
	add("above", loud, at(step, 0, r.above+1), constant(0))
	if half := float64(int(r.above)/2 + 1); r.kind == "sum" {
		add("above together", loud, at(step, 0, half), at(step, 0, half))
	} else if r.above > 1 {
		add("each below", quiet, at(step, 0, half), at(step, 0, half))
	}
	if wait >= 2*slowest {
		add("above for a moment", quiet, func(now time.Duration) (float64, bool) {
			if now >= step && now < step+wait-slowest {
				return r.above + 1, true
			}
			return 0, true
		}, constant(0))
	}
	return list
}

// growths are the drills of a rule about growth.
func growths(r rule) (list []scenario) {
	label, labels := "", []string(nil)
	if r.by != "" {
		label = "ChatCreated"
		labels = []string{fmt.Sprintf(`%s="%s"`, r.by, label)}
	}
	add := func(name string, a, b func(time.Duration) (float64, bool), checks ...check) {
		for i := range checks {
			checks[i].label = label
		}
		list = append(list, scenario{name, r, pair(r.metric, a, b, labels...), checks})
	}
	full := step + r.growth + 2*slowest
	below := max(0, r.above-1) * r.per
	add("below", rising(below, r.growth), constant(7), check{at: step}, check{at: step + r.growth/2}, check{at: full},
		check{at: full + r.growth})
	above := (r.above + 1) * r.per
	add("above", rising(above, r.growth), constant(7), check{at: step}, check{at: full, fires: true},
		check{at: full + slowest/2, fires: true})
	if r.kind == "sum" && above > 1 {
		add("above together", rising(above-1, r.growth), rising(2, r.growth), check{at: full, fires: true})
	}
	burst := 7*time.Second + step
	add("all at once", at(burst, 2, 3+above), constant(7), check{at: step}, check{at: burst + 2*slowest, fires: true},
		check{at: burst + r.growth + 2*slowest})
	return list
}

// buckets are those of parley_kafka_publish_seconds.
var buckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 5, 10, 30}

// quantiles are the drills of a rule about the time that one in a hundred exceeds.
func quantiles(r rule, wait time.Duration) (list []scenario) {
	for _, level := range []struct {
		name  string
		slow  float64 // seconds that two in a hundred take
		fires bool
	}{{"below", r.above * 0.9, false}, {"above", r.above * 1.5, true}} {
		s := scenario{name: level.name, rule: r,
			checks: []check{{at: step - evaluate}, {at: step + r.growth + wait, fires: level.fires}}}
		add := func(le string, share float64) {
			s.series = append(s.series, pair(r.metric+"_bucket", func(now time.Duration) (float64, bool) {
				before, after := min(now, step).Seconds(), max(0, now-step).Seconds()
				return float64(int(10*before + 10*after*share)), true
			}, constant(5), fmt.Sprintf(`le="%s"`, le))[:2]...)
		}
		for _, le := range buckets {
			share := 0.98
			if le >= level.slow {
				share = 1
			} else if le < 0.01 {
				share = 0
			}
			add(fmt.Sprint(le), share)
		}
		add("+Inf", 1)
		list = append(list, s)
	}
	return list
}

func scenarios(r rule, wait time.Duration) []scenario {
	gone := func(now time.Duration) (float64, bool) { return 1, now < step }
	loud := []check{{at: step - evaluate}, {at: step + wait + slowest, fires: true}}
	switch {
	case r.kind == "failing", r.kind == "slow":
		return burns(r)
	case len(r.labels) > 0:
		return extremes(r, wait)
	case r.kind == "quantile":
		return quantiles(r, wait)
	case r.growth > 0:
		return growths(r)
	case r.kind == "absent":
		return []scenario{
			{"there", r, pair(r.metric, constant(0), gone), []check{{at: step + wait + 5*slowest}}},
			{"gone", r, pair(r.metric, gone, gone), loud},
		}
	case r.kind == "less":
		declared := []series{{of(r.below, "a"), constant(8)}, {of(r.below, "b"), constant(8)}}
		return []scenario{
			{"all are held", r, append(pair(r.metric, at(step, 3, 5), at(step, 5, 3)), declared...),
				[]check{{at: step + wait + 5*slowest}}},
			{"one is not", r, append(pair(r.metric, constant(5), at(step, 3, 2)), declared...), loud},
		}
	default:
		return values(r, wait)
	}
}

// K-167, and the same for the alerts that are ours, by Prometheus itself at each interval
// of scraping: each alert fires one step beyond its threshold once its wait is over, and
// neither one step before it nor sooner. There are two processes; what is added up is
// spread over both.
func TestDrills(t *testing.T) {
	promtool(t)
	drilled := 0
	for _, list := range all(t) {
		for _, r := range list {
			drilled++
			t.Run(r.Alert, func(t *testing.T) {
				t.Parallel()
				drill(t, scenarios(r, r.wait(t))...)
			})
		}
	}
	if drilled < 35 {
		t.Fatalf("only %d alerts were drilled", drilled)
	}
}

// from is a series that begins with a process.
func from(when time.Duration, v float64) func(time.Duration) (float64, bool) {
	return func(now time.Duration) (float64, bool) { return v, now >= when }
}

// What a process counts between its start and its first scrape raises the alert, also if
// the one before it had counted as much; what it counted long before anybody scraped it
// does not.
func TestBeforeTheFirstScrape(t *testing.T) {
	promtool(t)
	started := step + time.Second
	const old = 41
	for _, list := range all(t) {
		for _, r := range list {
			if !r.young {
				continue
			}
			t.Run(r.Alert, func(t *testing.T) {
				t.Parallel()
				n := r.above*r.per + 1
				label, labels := "", []string(nil)
				if r.by != "" {
					label = "MembershipChanged"
					labels = []string{fmt.Sprintf(`%s="%s"`, r.by, label)}
				}
				process := func(start, counter func(time.Duration) (float64, bool)) []series {
					return []series{{of("process_start_time_seconds", "a"), start}, {of(r.metric, "a", labels...), counter}}
				}
				fires := []check{{at: step - evaluate}, {at: started + slowest + evaluate, fires: true, label: label},
					{at: started + r.growth + 2*slowest}}
				silent := []check{{at: step + evaluate}, {at: step + slowest + evaluate}, {at: step + r.growth}}
				drill(t,
					scenario{"a process begins with it", r, process(from(started, started.Seconds()), from(started, n)), fires},
					scenario{"a process is restarted", r, process(at(started, -aged, started.Seconds()), constant(n)), fires},
					scenario{"a process begins without", r, process(from(started, started.Seconds()), from(started, n-1)), silent},
					scenario{"a Prometheus begins", r, process(from(step, -aged), from(step, old*n)), silent},
				)
			})
		}
	}
}

// A restart of two workers, one after the other, in a group of three: the one that stays
// counts four rebalances. The alert fires only where that continues.
func TestOrdinaryRestartIsNoAlarm(t *testing.T) {
	promtool(t)
	r := named(t, "fanout_rebalances_high")
	restarts := func(n int) func(time.Duration) (float64, bool) {
		return func(now time.Duration) (float64, bool) { // one goes, a minute later one comes
			return float64(1 + min(2*n, max(0, 1+int((now-step)/time.Minute)))), true
		}
	}
	drill(t,
		scenario{"two are restarted", r, pair(r.metric, restarts(2), constant(1)),
			[]check{{at: step + 5*time.Minute}, {at: step + 50*time.Minute}}},
		scenario{"they are restarted again", r, pair(r.metric, restarts(4), constant(1)),
			[]check{{at: step + 20*time.Minute, fires: true}}},
	)
}

// An operator sets offsets back by hours: the oldest record is hours old at once, and
// fanout catches up within minutes. Nobody is woken for that; for one that stays, yes.
func TestOffsetResetIsNoAlarm(t *testing.T) {
	promtool(t)
	for _, name := range []string{"fanout_lag_seconds_critical", "fanout_lag_memberships_critical"} {
		r := named(t, name)
		catchesUp := func(now time.Duration) (float64, bool) { // 10,000 s of events in 50 s
			if now < step {
				return 0, true
			}
			return max(0, 10_000-200*(now-step).Seconds()), true
		}
		drill(t,
			scenario{"it catches up", r, pair(r.metric, catchesUp, constant(0)),
				[]check{{at: step + evaluate}, {at: step + slowest}, {at: step + 10*slowest}}},
			scenario{"it does not", r, pair(r.metric, at(step, 0, 10_000), constant(0)),
				[]check{{at: step + evaluate}, {at: step + 10*slowest, fires: true}}},
		)
	}
}
