package opsctl

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/config"
)

// enumFlag declares a flag that takes one of an enum's values by its word.
func enumFlag[E ~int32](fs *pflag.FlagSet, to *E, name, prefix string, values map[string]int32, usage string) {
	words := map[string]E{}
	for value, number := range values {
		if number != 0 {
			words[strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(value, prefix), "_", "-"))] = E(number)
		}
	}
	list := strings.Join(slices.Sorted(maps.Keys(words)), ", ")
	fs.Func(name, usage+": `"+strings.ReplaceAll(name, "-", " ")+"`, one of "+list, func(s string) error {
		v, ok := words[s]
		if !ok {
			return fmt.Errorf("must be one of %s", list)
		}
		*to = v
		return nil
	})
}

// durationFlag declares a flag that takes a duration, days too.
func durationFlag(fs *pflag.FlagSet, to **durationpb.Duration, name, usage string) {
	boundedFlag(fs, to, name, usage, 0, math.MaxInt64)
}

// boundedFlag declares a flag that takes a duration between two others.
func boundedFlag(fs *pflag.FlagSet, to **durationpb.Duration, name, usage string, least, most time.Duration) {
	fs.Func(name, usage+", a `duration` such as 90s, 12h or 7d", func(s string) error {
		d, err := parseDuration(s)
		switch {
		case err != nil:
			return err
		case d < least || d > most:
			return fmt.Errorf("must be %s to %s", writeDuration(least), writeDuration(most))
		}
		*to = durationpb.New(d)
		return nil
	})
}

// sizeFlag declares a flag that takes a number of bytes.
func sizeFlag(fs *pflag.FlagSet, to **int64, name, usage string) {
	fs.Func(name, usage+", a `size` such as 500MB or 20GB", func(s string) error {
		n, err := config.ParseSize(s)
		if err != nil {
			return fmt.Errorf("must be %w", err)
		}
		*to = proto.Int64(int64(n))
		return nil
	})
}

func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		h, err := time.ParseDuration(days + "h")
		if err != nil || h > 1<<62/24 || h < 0 {
			return 0, errors.New("must be a duration such as 90s, 12h or 7d")
		}
		return 24 * h, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("must be a duration such as 90s, 12h or 7d")
	}
	return d, nil
}

const positionUsage = "earliest, latest, a message's id, a time like 2030-01-02T15:04:05Z or an age like 90m"

// parsePosition reads a place in a topic.
func parsePosition(s string) (*topicv1.Position, error) {
	switch s {
	case "earliest":
		return &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}, nil
	case "latest":
		return &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}, nil
	}
	at := func(t time.Time) *topicv1.Position {
		return &topicv1.Position{At: &topicv1.Position_Time{Time: timestamppb.New(t)}}
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return at(t), nil
	}
	if d, err := parseDuration(s); err == nil {
		return at(time.Now().Add(-d)), nil
	}
	if partition, position, ok := strings.Cut(s, "-"); ok && digits(partition) && digits(position) {
		return &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: s}}, nil
	}
	return nil, fmt.Errorf("%.40q is not a valid place: it must be %s", s, positionUsage)
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func positionFlag(fs *pflag.FlagSet, to **topicv1.Position, name, usage string) {
	fs.Func(name, usage+": `place` is "+positionUsage, func(s string) (err error) {
		*to, err = parsePosition(s)
		return err
	})
}

// filterFlags declares the flags that choose messages.
func filterFlags(fs *pflag.FlagSet, to **topicv1.Filter) {
	add := func(c *topicv1.FilterClause) {
		if *to == nil {
			*to = &topicv1.Filter{}
		}
		(*to).Clauses = append((*to).Clauses, c)
	}
	fs.Func("types", "only messages of these `types`, with commas between them", func(s string) error {
		add(&topicv1.FilterClause{Operator: topicv1.FilterClause_OPERATOR_IN, Values: strings.Split(s, ",")})
		return nil
	})
	fs.Func("where", "only messages with a header: `clause` is NAME=VALUE,…, NAME!=VALUE,…, NAME^=PREFIX,…, NAME or !NAME;"+
		" may be repeated", func(s string) error {
		c, err := parseClause(s)
		if err == nil {
			add(c)
		}
		return err
	})
}

func parseClause(s string) (*topicv1.FilterClause, error) {
	name, values, has := strings.Cut(s, "=")
	c := &topicv1.FilterClause{Header: name, Operator: topicv1.FilterClause_OPERATOR_IN}
	switch {
	case !has && strings.HasPrefix(s, "!"):
		c.Header, c.Operator = s[1:], topicv1.FilterClause_OPERATOR_MISSING
	case !has:
		c.Operator = topicv1.FilterClause_OPERATOR_EXISTS
	case strings.HasSuffix(name, "!"):
		c.Header, c.Operator = strings.TrimSuffix(name, "!"), topicv1.FilterClause_OPERATOR_NOT_IN
	case strings.HasSuffix(name, "^"):
		c.Header, c.Operator = strings.TrimSuffix(name, "^"), topicv1.FilterClause_OPERATOR_PREFIX
	}
	if c.GetHeader() == "" {
		return nil, errors.New("must name a header")
	}
	if has {
		c.Values = strings.Split(values, ",")
	}
	return c, nil
}

// subscriptionFlags declares what can be chosen for a subscription.
func subscriptionFlags(fs *pflag.FlagSet, to *topicv1.SubscriptionConfig) {
	positionFlag(fs, &to.Start, "from", "where a new group begins, latest by default")
	fs.BoolVar(&to.Backfill, "backfill", false, "hold messages before the subscription until they are acknowledged")
	changeableFlags(fs, to)
}

// settingOfFlag are the settings of flags that change a subscription.
var settingOfFlag = map[string]string{
	"max-backfill": "max_backfill_messages", "types": "filter", "where": "filter", "no-filter": "filter",
	"ordering": "ordering", "selection": "selection", "exhausted": "exhausted", "max-attempts": "retry.max_attempts",
	"backoff": "retry.initial_backoff", "max-backoff": "retry.max_backoff", "lease": "retry.lease",
	"heartbeat-interval": "heartbeat_interval", "heartbeat-timeout": "heartbeat_timeout",
	"max-in-flight": "max_in_flight", "push-url": "push", "push-secret-file": "push", "no-push": "push",
}

// changeableFlags declares what can be changed of a subscription.
func changeableFlags(fs *pflag.FlagSet, to *topicv1.SubscriptionConfig) {
	to.Retry = &topicv1.RetryPolicy{}
	fs.Int64Var(&to.MaxBackfillMessages, "max-backfill", 0, "at most so many `messages`, the newest; default 1,000,000, -1: no limit")
	filterFlags(fs, &to.Filter)
	enumFlag(fs, &to.Ordering, "ordering", "ORDERING_", topicv1.Ordering_value, "what may be under way at a time")
	enumFlag(fs, &to.Selection, "selection", "SELECTION_", topicv1.Selection_value, "which member gets a message")
	enumFlag(fs, &to.Exhausted, "exhausted", "EXHAUSTED_", topicv1.Exhausted_value,
		"what becomes of messages that fail too often")
	fs.Int32Var(&to.Retry.MaxAttempts, "max-attempts", 0, "how many `times` a message is delivered; default 5")
	durationFlag(fs, &to.Retry.InitialBackoff, "backoff", "pause after the first failure, 1s by default")
	durationFlag(fs, &to.Retry.MaxBackoff, "max-backoff", "longest pause, 5m by default")
	durationFlag(fs, &to.Retry.Lease, "lease", "how long a member has for a message, 30s by default")
	durationFlag(fs, &to.HeartbeatInterval, "heartbeat-interval", "how often members are heard from, 60s by default")
	durationFlag(fs, &to.HeartbeatTimeout, "heartbeat-timeout", "after which silence the group is dead, 5m by default")
	pushFlag(fs, &to.Push)
	fs.Int32Var(&to.MaxInFlight, "max-in-flight", 0, "how many `messages` all members have in hand at most; default 0, no bound")
}
