package rule

import (
	"fmt"
	"slices"
	"strings"
)

// Policy says which direction of reading is kept.
type Policy int

// Policies as schema registries name them. Transitive ones compare with every
// released version; a single comparison is the same.
const (
	Full               Policy = iota // both directions
	FullTransitive                   // both, with every earlier version
	Backward                         // new consumers read old events
	Forward                          // old consumers read new events
	None                             // nothing is compared
	BackwardTransitive               // as Backward, with every earlier version
	ForwardTransitive                // as Forward, with every earlier version
)

var policies = []string{"FULL", "FULL_TRANSITIVE", "BACKWARD", "FORWARD", "NONE", "BACKWARD_TRANSITIVE",
	"FORWARD_TRANSITIVE"}

// String returns the registry's name of the policy.
func (p Policy) String() string { return policies[p] }

// Transitive says whether every earlier version is compared, not the newest alone.
func (p Policy) Transitive() bool {
	return p == FullTransitive || p == BackwardTransitive || p == ForwardTransitive
}

// NewReadsOld says whether new consumers must read old events.
func (p Policy) NewReadsOld() bool { return p != None && p != Forward && p != ForwardTransitive }

// OldReadsNew says whether old consumers must read new events.
func (p Policy) OldReadsNew() bool { return p != None && p != Backward && p != BackwardTransitive }

// ParsePolicy reads the registry's name of a policy in any case.
func ParsePolicy(s string) (Policy, error) {
	i := slices.Index(policies, strings.ToUpper(s))
	if i < 0 {
		return 0, fmt.Errorf("no such policy; known are %s", strings.Join(policies, ", "))
	}
	return Policy(i), nil
}
