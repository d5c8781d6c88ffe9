// Package gate gives the one verdict on a schema change that the command line, the
// plugin of buf and the registry share: the rules of compat, then the samples of
// differential, within a budget.
//
// It owns which versions a policy compares and how both kinds of findings become one
// list. It knows no rule and makes no sample.
//
// Concurrency: functions share nothing and may run together.
package gate

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/differential"
	"github.com/parley-chat/parley/schemacheck/internal/crash"
)

// Comparison is the verdict on one earlier version.
type Comparison struct {
	Version  int // index of the version among those given
	Findings []compat.Finding
}

// CompareAll judges whether head may follow n versions, of which number 0 is the oldest
// and version returns the files. The policy decides with which of them head is compared:
// the newest, or under a transitive policy all. It yields one comparison for each, the
// newest first, and asks for a version when its turn comes, so that a long history is
// not in memory at once. Under compat.None, or without versions, it yields nothing.
//
// Conditions of head alone, and the step from one version number to the next, are asked of
// the newest version only. Errors are those of version and of the context, crash.Err for
// unexpected panics, and descriptors that the protobuf runtime cannot link; none of them is
// a verdict. An error is the last that is yielded.
func CompareAll(
	ctx context.Context, n int, version func(int) ([]protoreflect.FileDescriptor, error),
	head []protoreflect.FileDescriptor, o compat.Options,
) iter.Seq2[Comparison, error] {
	return func(yield func(Comparison, error) bool) {
		if o.Policy == compat.None {
			return
		}
		for i := n - 1; i >= 0; i-- {
			findings, err := compareVersion(ctx, i, version, head, o)
			if err == nil && i < n-1 {
				findings = slices.DeleteFunc(findings, func(f compat.Finding) bool { return f.Rule.Has(rule.NewestOnly) })
			}
			if !yield(Comparison{Version: i, Findings: findings}, err) || err != nil || !o.Policy.Transitive() {
				return
			}
		}
	}
}

func compareVersion(
	ctx context.Context, i int, version func(int) ([]protoreflect.FileDescriptor, error),
	head []protoreflect.FileDescriptor, o compat.Options,
) ([]compat.Finding, error) {
	base, err := version(i)
	if err != nil {
		return nil, err
	}
	return Compare(ctx, base, head, o)
}

// InMemory is the argument of CompareAll for versions that are in memory.
func InMemory(
	versions [][]protoreflect.FileDescriptor,
) (n int, version func(int) ([]protoreflect.FileDescriptor, error)) {
	return len(versions), func(i int) ([]protoreflect.FileDescriptor, error) { return versions[i], nil }
}

// Compare judges whether head may replace base: by the rules, then by samples. Samples
// do not repeat what the rules say of an element, unless they weigh more. Errors are
// those of CompareAll.
func Compare(
	ctx context.Context, base, head []protoreflect.FileDescriptor, o compat.Options,
) (findings []compat.Finding, err error) {
	defer crash.Recover(&err)
	findings, err = compat.Compare(ctx, base, head, o)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	ran, err := differential.Execute(ctx, base, head, o)
	if err != nil {
		return nil, fmt.Errorf("run samples: %w", err)
	}
	byRules := map[string]compat.Severity{}
	for _, f := range findings {
		byRules[f.Subject] = max(byRules[f.Subject], f.Severity)
	}
	return append(findings, slices.DeleteFunc(ran, func(f compat.Finding) bool {
		if f.Rule.Has(rule.NotExecuted) {
			return byRules[f.Subject] == compat.Block
		}
		return byRules[f.Subject] >= f.Severity
	})...), nil
}
