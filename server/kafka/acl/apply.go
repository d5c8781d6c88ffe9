package acl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// entry is one ACL of a cluster.
type entry struct {
	principal string
	kind      kmsg.ACLResourceType
	name      string
	pattern   kmsg.ACLResourcePatternType
	operation kmsg.ACLOperation
}

func (e entry) String() string {
	r := Right{Type: e.kind, Name: e.name}
	return fmt.Sprintf("%s may %s %s", e.principal, operationName(e.operation), strings.TrimSuffix(r.resource(), "*"))
}

// declared returns the table as ACLs, without repetition where one has several roles.
func declared(p Principals) []entry {
	set := map[entry]bool{}
	for _, r := range Rights() {
		pattern := kmsg.ACLResourcePatternTypeLiteral
		if r.Prefixed {
			pattern = kmsg.ACLResourcePatternTypePrefixed
		}
		for _, o := range r.Operations {
			set[entry{p[r.Role], r.Type, r.Name, pattern, o}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b entry) int { return cmp.Compare(a.String(), b.String()) })
}

// ErrNoAuthorizer says that everybody may do everything on this cluster.
var ErrNoAuthorizer = errors.New("kafka: the cluster has no authorizer: everybody may do everything")

// list reads all ACLs that allow something; those of some hosts only are left out.
func list(ctx context.Context, c *kafka.Client) (map[entry]bool, error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAllow
	res, err := req.RequestWith(ctx, c)
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.SecurityDisabled):
		return nil, ErrNoAuthorizer
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return nil, errors.New("kafka: this user may not read ACLs: it needs Describe on the cluster, as the role operator has")
	case err != nil:
		return nil, fmt.Errorf("kafka: read ACLs: %w", err)
	}
	have := map[entry]bool{}
	for _, r := range res.Resources {
		for _, a := range r.ACLs {
			if a.Host == "*" {
				have[entry{a.Principal, r.ResourceType, r.ResourceName, r.ResourcePatternType, a.Operation}] = true
			}
		}
	}
	return have, nil
}

// Verify compares the ACLs of a cluster with the table. It returns a line for each ACL that
// is missing. It also returns a line for each ACL that lets another principal change a
// topic of Parley's, or one of its users do more.
func Verify(ctx context.Context, c *kafka.Client, p Principals) ([]string, error) {
	have, err := list(ctx, c)
	if err != nil {
		return nil, err
	}
	var lines []string
	want := map[entry]bool{}
	ours := map[string]bool{}
	for _, e := range declared(p) {
		want[e], ours[e.principal] = true, true
		if !have[e] {
			lines = append(lines, "missing: "+e.String())
		}
	}
	var more []string
	for e := range have {
		if !want[e] && (ours[e.principal] || changes(e)) {
			more = append(more, "not declared: "+e.String())
		}
	}
	slices.Sort(more)
	return append(lines, more...), nil
}

// changes reports whether an ACL lets a principal change a declared topic.
func changes(e entry) bool {
	switch e.operation {
	case kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs:
		return false
	}
	if e.kind != kmsg.ACLResourceTypeTopic {
		return false
	}
	return slices.ContainsFunc(kafka.Topics(), func(t kafka.Topic) bool {
		if e.pattern == kmsg.ACLResourcePatternTypePrefixed {
			return strings.HasPrefix(t.Name, e.name) || strings.HasPrefix(e.name, t.Name+".v")
		}
		base, _, version := versions.Base(e.name)
		return version && base == t.Name || e.name == "*"
	})
}

// Apply makes the ACLs that are missing and returns what it did. It removes none.
func Apply(ctx context.Context, c *kafka.Client, p Principals) (did []string, err error) {
	have, err := list(ctx, c)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrCreateACLsRequest()
	var wanted []entry
	for _, e := range declared(p) {
		if have[e] {
			continue
		}
		wanted = append(wanted, e)
		a := kmsg.NewCreateACLsRequestCreation()
		a.ResourceType, a.ResourceName, a.ResourcePatternType = e.kind, e.name, e.pattern
		a.Principal, a.Host, a.Operation, a.PermissionType = e.principal, "*", e.operation, kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, a)
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	res, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("kafka: make ACLs: %w", err)
	}
	for i, r := range res.Results {
		switch err := kerr.ErrorForCode(r.ErrorCode); {
		case errors.Is(err, kerr.ClusterAuthorizationFailed):
			return did, errors.New("kafka: this user may not make ACLs: it needs Alter on the cluster, which no role of Parley's has")
		case err != nil:
			return did, fmt.Errorf("kafka: make ACLs: %w", err)
		case i < len(wanted):
			did = append(did, "made: "+wanted[i].String())
		}
	}
	return did, nil
}
