// Package gate gives the one verdict on a schema change that the command line, the
// plugin of buf and the registry share: the rules of compat, then the samples of
// execute, within a budget.
//
// It owns which versions a policy compares and how both kinds of findings become one
// list. It knows no rule and makes no sample.
//
// Concurrency: functions share nothing and may run together.
package gate

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/execute"
	"github.com/parley-chat/parley/schemacheck/internal/crash"
)

// ErrInternal says that a comparison failed for a reason that nobody foresaw. Its
// text names the failure, and is no verdict on the schemas.
var ErrInternal = crash.Err

// Comparison is the verdict on one earlier version.
type Comparison struct {
	Version  int // index of the version among those given
	Findings []compat.Finding
}

// CompareAll judges whether head may follow the versions, which are ordered from the
// oldest to the newest. The policy decides with which of them it is compared: the
// newest, or under a transitive policy all; the result has one entry for each, in the
// same order. Under compat.None, or without versions, nothing is compared.
//
// Conditions of head alone, and the step from one version number to the next, are
// asked of the newest version only. Errors are those of the context, ErrInternal, and
// descriptors that the protobuf runtime cannot link; none of them is a verdict.
func CompareAll(ctx context.Context, versions [][]protoreflect.FileDescriptor, head []protoreflect.FileDescriptor, o compat.Options) ([]Comparison, error) {
	first := 0
	switch {
	case o.Policy == compat.None:
		return nil, nil
	case !o.Policy.Transitive():
		first = max(len(versions)-1, 0)
	}
	var list []Comparison
	for i := first; i < len(versions); i++ {
		findings, err := Compare(ctx, versions[i], head, o)
		if err != nil {
			return nil, err
		}
		if i < len(versions)-1 {
			findings = slices.DeleteFunc(findings, func(f compat.Finding) bool { return f.Rule.Has(rule.NewestOnly) })
		}
		list = append(list, Comparison{Version: i, Findings: findings})
	}
	return list, nil
}

// Compare judges whether head may replace base: by the rules, then by samples. Samples
// do not repeat what the rules say of an element, unless they weigh more. Errors are
// those of CompareAll.
func Compare(ctx context.Context, base, head []protoreflect.FileDescriptor, o compat.Options) (findings []compat.Finding, err error) {
	defer crash.Recover(&err)
	findings, err = compat.Compare(ctx, base, head, o)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	ran, err := execute.Execute(ctx, base, head, o)
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
