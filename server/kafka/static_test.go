package kafka_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// static is a static member of a group that polls until it is stopped.
type static struct {
	*kafka.Session
	stop func() // the polls; a member that is stopped still sends heartbeats

	mu    sync.Mutex
	parts map[kafka.Partition]bool
}

func joinStatic(t *testing.T, b *kafkatest.Broker, group, instance string) *static {
	t.Helper()
	m := &static{parts: map[kafka.Partition]bool{}}
	set := func(list []kafka.Partition, owned bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range list {
			m.parts[p] = owned
		}
	}
	s, err := kafka.NewSession(kafka.SessionConfig{
		Addr: b.Addr, Group: group, Instance: instance, Topics: []string{place},
		Assigned: func(list []kafka.Partition) { set(list, true) },
		Gone:     func(list []kafka.Partition, _ bool) { set(list, false) },
	})
	testkit.Must(t, err)
	m.Session = s
	ctx, cancel := context.WithCancel(bounded(t))
	var polling sync.WaitGroup
	polling.Go(func() {
		for ctx.Err() == nil {
			_, _ = s.Poll(ctx)
			s.Done()
		}
	})
	m.stop = sync.OnceFunc(func() { cancel(); polling.Wait() })
	t.Cleanup(m.stop)
	return m
}

// owned counts the partitions of a member.
func (m *static) owned() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, owned := range m.parts {
		if owned {
			n++
		}
	}
	return n
}

// instances lists the static members of a group.
func instances(t *testing.T, b *kafkatest.Broker, group string) (list []string) {
	t.Helper()
	described, err := kadm.NewClient(b.Client(t)).DescribeGroups(bounded(t), group)
	testkit.Must(t, err)
	for _, m := range described[group].Members {
		if m.InstanceID != nil {
			list = append(list, *m.InstanceID)
		}
	}
	slices.Sort(list)
	return list
}

// A static member leaves its group when it is closed, and is removed by others once it has died.
// Its partitions go to the others long before its session runs out. A member that was removed
// although it is alive commits nothing more.
func TestStaticMembersLeave(t *testing.T) {
	b := kafkatest.Apache(t)
	group := b.Name("group")
	first, second, third := joinStatic(t, b, group, "first"), joinStatic(t, b, group, "second"),
		joinStatic(t, b, group, "third")
	all := int(kafka.Partitions(place))
	testkit.Eventually(t, "each has a part", func() bool {
		return first.owned() > 0 && second.owned() > 0 && third.owned() > 0 &&
			first.owned()+second.owned()+third.owned() == all
	})
	first.stop()
	first.Close()
	if got := instances(t, b, group); !slices.Equal(got, []string{"second", "third"}) {
		t.Fatalf("%q are members after the first was closed", got)
	}
	testkit.Eventually(t, "two have its part", func() bool { return second.owned()+third.owned() == all })

	second.stop()
	testkit.Must(t, kafka.RemoveMember(bounded(t), b.Addr, group, "second"))
	err := second.Commit(bounded(t), map[kafka.Partition]int64{{Topic: place}: 0})
	if !errors.Is(err, kafka.ErrNotMember) {
		t.Errorf("a removed member commits: %v", err)
	}
	testkit.Must(t, kafka.RemoveMember(bounded(t), b.Addr, group, "nobody"))
	second.Close()
	testkit.Eventually(t, "one has all", func() bool { return third.owned() == all })
	third.stop()
	third.Close()
}

// A process with the name of another takes its partitions over, and remains a member when the
// other one is closed.
func TestStaticMemberIsReplaced(t *testing.T) {
	b := kafkatest.Apache(t)
	group := b.Name("group")
	all := int(kafka.Partitions(place))
	first := joinStatic(t, b, group, "worker")
	testkit.Eventually(t, "it has all", func() bool { return first.owned() == all })
	second := joinStatic(t, b, group, "worker")
	testkit.Eventually(t, "the second has all", func() bool { return second.owned() == all })
	first.stop()
	err := first.Commit(bounded(t), map[kafka.Partition]int64{{Topic: place}: 0})
	if !errors.Is(err, kafka.ErrNotMember) {
		t.Errorf("a replaced member commits: %v", err)
	}
	first.Close()
	if got := instances(t, b, group); !slices.Equal(got, []string{"worker"}) {
		t.Errorf("%q are members", got)
	}
	second.stop()
	testkit.Must(t, second.Commit(bounded(t), map[kafka.Partition]int64{{Topic: place}: 0}))
	second.Close()
}
