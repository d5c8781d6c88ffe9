package topicrpc

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/config"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic"
)

// What the slots of a process show is added up, or the largest is shown; what was counted in a
// slot that is given up stays counted.
func TestSums(t *testing.T) {
	t.Parallel()
	st := embeddedtest.NewDisk(nil).Open(t, time.Now)
	log := commitlog.NewLocal(records.Of(st), time.Now)
	s := newSums()
	published := s.counter(func(of *topic.Service) float64 { return float64(of.Counters().Published.Load()) })
	near := s.gauge(func(of *topic.Service) float64 { return float64(of.Counters().NearTimeout.Load()) })
	overdue := s.most(func(of *topic.Service) float64 { return float64(of.Counters().Gauges.Overdue.Load()) })
	show := func() string { return fmt.Sprint(published(), near(), overdue()) }
	testkit.Equal(t, "without slots", show(), "0 0 0")
	operator := topic.Caller{Principal: "ada", Operator: true}
	var services []*topic.Service
	for n := range 2 {
		of, err := topic.New(t.Context(), topic.Config{
			Slot: topic.Slot{Number: n, Of: 2}, Store: st, Log: log, Clock: time.Now,
			Logger: slog.New(slog.DiscardHandler),
			Audit: func(context.Context, string, string, string) (func(code, result string), error) {
				return func(string, string) {}, nil
			},
		})
		testkit.Must(t, err)
		s.begin(of)
		services = append(services, of)
		name := "a"
		for topic.SlotOf(name, 2) != n {
			name += "a"
		}
		for range n + 1 {
			_, err = of.Publish(t.Context(), operator, &topicv1.PublishRequest{Topic: name,
				Messages: []*topicv1.TopicMessage{{Payload: []byte("hello")}}})
			testkit.Must(t, err)
		}
		of.Counters().NearTimeout.Store(int64(10 * (n + 1)))
		of.Counters().Gauges.Overdue.Store(int64(100 * (n + 1)))
	}
	testkit.Equal(t, "two slots", show(), "3 30 200")
	s.end(services[1])
	s.end(services[1])
	testkit.Equal(t, "one was given up", show(), "3 10 100")
}

// Each schedule of jobs that the settings take is one that topics have, and no other opens them: jobs
// without a schedule would run without a pause.
func TestSchedulesOfSettings(t *testing.T) {
	t.Parallel()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := config.Declare(config.Server, set)
	testkit.Must(t, set.Parse([]string{"--topic-jobs", "hourly"}))
	_, err := flags.Read(nil)
	_, text, _ := strings.Cut(fmt.Sprint(err), "must be ")
	text, _, _ = strings.Cut(text, ", not ")
	names := strings.Split(strings.ReplaceAll(text, " or ", ", "), ", ")
	testkit.Equal(t, "schedules", len(names), 6)
	st := embeddedtest.NewDisk(nil).Open(t, time.Now)
	for _, name := range append(names, "hourly") {
		_, err := topic.New(t.Context(), topic.Config{
			Slot: topic.Slot{Of: 1}, Store: st, Log: commitlog.NewLocal(records.Of(st), time.Now), Clock: time.Now,
			Logger: slog.New(slog.DiscardHandler), Jobs: name,
		})
		testkit.Equal(t, name+" opens topics", err == nil, name != "hourly")
	}
}
