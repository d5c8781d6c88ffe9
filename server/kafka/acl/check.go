package acl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// Check asks the cluster for the permissions of a client's user, and refuses a user without
// those that its roles need; the error names them in one line. A cluster without an
// authorizer permits everything.
func Check(ctx context.Context, c *kafka.Client, user string, of ...Role) error {
	var lacks []string
	topics, err := topicRights(ctx, c, kafka.Topics())
	if err != nil {
		return err
	}
	for _, r := range Rights() {
		if !slices.Contains(of, r.Role) {
			continue
		}
		var missing []string
		switch r.Type {
		case kmsg.ACLResourceTypeTopic:
			may := topics[r.Name]
			for _, o := range r.Operations {
				if !may.can(o) {
					missing = append(missing, operationName(o))
				}
			}
		case kmsg.ACLResourceTypeGroup:
			missing, err = groupRights(ctx, c, r)
		case kmsg.ACLResourceTypeTransactionalId:
			missing = transactionRights(ctx, c, r)
		}
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			lacks = append(lacks, strings.Join(missing, " and ")+" on "+r.resource())
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	who := "this user"
	if user != "" {
		who = fmt.Sprintf("user %.100q", user)
	}
	return fmt.Errorf("kafka: %s lacks %s; %s", who, strings.Join(lacks, ", "), hint)
}

// Explain adds to an error about missing rights where they are declared.
func Explain(err error) error {
	for _, is := range []error{kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed} {
		if errors.Is(err, is) {
			return fmt.Errorf("%w; %s", err, hint)
		}
	}
	return err
}

const hint = "`workers kafka acl` prints what each role needs"

// operations is the set of operations that a principal may perform, in Kafka's bits.
type operations struct {
	bits  int32
	known bool // false: the cluster does not say
}

func (s operations) can(o kmsg.ACLOperation) bool { return !s.known || s.bits&(1<<uint(o)) != 0 }

// unsaid is Kafka's value for rights that were not asked for, or that it does not know.
const unsaid = -1 << 31

// CheckTopics refuses topics with which a role may not do what it may with those that are
// declared: versions of them.
func CheckTopics(ctx context.Context, c *kafka.Client, role Role, topics []kafka.Topic) error {
	have, err := topicRights(ctx, c, topics)
	if err != nil {
		return err
	}
	for _, t := range topics {
		base, _, _ := versions.Base(t.Name)
		for _, r := range Rights() {
			if r.Role != role || r.Type != kmsg.ACLResourceTypeTopic || r.Name != base {
				continue
			}
			for _, o := range r.Operations {
				if may := have[t.Name]; !may.can(o) {
					return fmt.Errorf("kafka: the role %s lacks %s on topic %s; %s", role, operationName(o), t.Name, hint)
				}
			}
		}
	}
	return nil
}

func topicRights(ctx context.Context, c *kafka.Client, topics []kafka.Topic) (map[string]operations, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t.Name)
		req.Topics = append(req.Topics, rt)
	}
	res, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("kafka: ask for rights: %w", err)
	}
	out := map[string]operations{}
	for _, t := range res.Topics {
		if t.Topic == nil {
			continue
		}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			out[*t.Topic] = operations{known: true} // not even described
		case err == nil && t.AuthorizedOperations != unsaid:
			out[*t.Topic] = operations{t.AuthorizedOperations, true}
		}
	}
	return out, nil
}

// groupRights asks for a group that may not exist yet, about which Kafka says nothing: the
// answer to a heartbeat of an unknown member shows whether the user may join.
func groupRights(ctx context.Context, c *kafka.Client, r Right) (missing []string, err error) {
	for _, o := range r.Operations {
		if o == kmsg.ACLOperationRead {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group, req.MemberID = r.Name, "parley-check"
			var res *kmsg.HeartbeatResponse
			if res, err = req.RequestWith(ctx, c); err == nil &&
				errors.Is(kerr.ErrorForCode(res.ErrorCode), kerr.GroupAuthorizationFailed) {
				err = kerr.GroupAuthorizationFailed
			}
		} else {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Groups = []string{r.Name}
			var res *kmsg.DescribeGroupsResponse
			if res, err = req.RequestWith(ctx, c); err == nil {
				for _, g := range res.Groups {
					if errors.Is(kerr.ErrorForCode(g.ErrorCode), kerr.GroupAuthorizationFailed) {
						err = kerr.GroupAuthorizationFailed
					}
				}
			}
		}
		switch {
		case errors.Is(err, kerr.GroupAuthorizationFailed):
			missing = append(missing, operationName(o))
		case errors.Is(err, kerr.CoordinatorNotAvailable), errors.Is(err, kerr.CoordinatorLoadInProgress),
			errors.Is(err, kerr.NotCoordinator):
			// A cluster without any group, or one that moves them: the consumer waits for it.
		case err != nil:
			return nil, fmt.Errorf("kafka: ask for rights on %s: %w", r.resource(), err)
		}
	}
	return missing, nil
}

// transactionRights asks for the coordinator of an id that no relay has. Kafka only answers
// whether the user may describe it, which the permission to write includes.
func transactionRights(ctx context.Context, c *kafka.Client, r Right) []string {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = 1, r.Name, []string{r.Name}
	res, err := req.RequestWith(ctx, c)
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
		for _, one := range res.Coordinators {
			err = cmp.Or(err, kerr.ErrorForCode(one.ErrorCode))
		}
	}
	if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return []string{operationName(kmsg.ACLOperationWrite)}
	}
	return nil // one that is not there yet comes with the first transaction
}
