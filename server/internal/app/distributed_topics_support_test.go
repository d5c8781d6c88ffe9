//go:build !windows

package app_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// What holds for topics of a server that is alone holds for those of an installation: its bound of bytes, schemas
// and webhooks, whichever server is asked, and after the topic's owner has changed. One installation has all of it,
// because to start it takes most of the time.
func TestTopicsOfAnInstallation(t *testing.T) {
	in := prepare(t)
	in.serve = []string{"--topic-max-bytes", "24MB", "--topic-push-allow", "127.0.0.1"}
	in.launch()
	w := in.topicHarness(t)
	for _, part := range []struct {
		name string
		test func(t *testing.T, w *topicHarness)
	}{{"bytes", boundOfBytes}, {"schemas", topicSchemas}, {"webhooks", func(t *testing.T, w *topicHarness) {
		pushOverKills(t, w, 1)
	}}} {
		t.Run(part.name, func(t *testing.T) {
			of := *w
			of.t = t
			part.test(t, &of)
		})
	}
}

var registryServed = regexp.MustCompile(`msg="schema registry" address=(\S+)`)

// topicHarness starts a worker with what operators manage topics with: the registry, and the service of
// operators.
func (in *installation) topicHarness(t *testing.T) *topicHarness {
	t.Helper()
	w := &topicHarness{t: t, alice: in.token("alice"), writer: "of writers"}
	t.Setenv("PARLEY_REGISTRY_WRITE_PASSWORD", w.writer)
	m := &member{binary: workersBinary(t), args: append(slices.Clone(in.flags),
		"--ops-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "run", "ops", "registry")}
	in.start(m)
	ops, registry := opsServed.FindStringSubmatch(m.log.String()), registryServed.FindStringSubmatch(m.log.String())
	if ops == nil || registry == nil {
		t.Fatal(m.log.String())
	}
	w.registry = "http://" + registry[1]
	for _, s := range in.servers {
		w.servers = append(w.servers, s.addr)
	}
	w.command = func(args ...string) (int, string, string) {
		return run(t.Context(), nil, slices.Concat(in.flags, []string{"--ops-address", ops[1], "--operator", "ada"}, args)...)
	}
	var before strings.Builder
	w.logs = func() string { return before.String() + in.servers[0].log.String() + in.servers[1].log.String() }
	w.replace = func(topic string, kill bool) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		was := in.ownerOf(ctx, w, topic)
		began := time.Now()
		if !kill {
			was.leave()
		}
		was.kill()
		before.WriteString(was.log.String())
		other := in.servers[0]
		if was == other {
			other = in.servers[1]
		}
		until(ctx, t, "the other server has the topic", func() bool { return in.has(ctx, w, other, topic) })
		t.Logf("another server has %s after %v", topic, time.Since(began).Round(time.Millisecond))
		in.start(was)
	}
	return w
}

// ownerOf waits until one server alone has a topic, and returns it.
func (in *installation) ownerOf(ctx context.Context, w *topicHarness, topic string) (owner *member) {
	w.t.Helper()
	until(ctx, w.t, "one server has "+topic, func() bool {
		owner = nil
		for _, m := range in.servers {
			if !in.has(ctx, w, m, topic) {
				continue
			}
			if owner != nil {
				return false // a slot is passed on
			}
			owner = m
		}
		return owner != nil
	})
	return owner
}

// has reports whether a server has a topic, which has a group g: then it shows how far the group is, once somebody
// has asked for it.
func (in *installation) has(ctx context.Context, w *topicHarness, m *member, topic string) bool {
	_, _, err := w.try(m.addr, "GET", "/topics/"+topic+"/subscriptions/g", "")
	if err != nil {
		return false
	}
	values, err := readMetrics(ctx, m.metricsAddr())
	testkit.Must(w.t, err)
	_, ok := values[telemetry.GroupLag+`{group="g",topic="`+topic+`"}`]
	return ok
}
