package app_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// HQ-O8: operators look after topics on their own listener, and what they change is recorded
// with their names; neither users, members and makers of the topic among them, nor strangers
// get anything, and users' listener does not have the service.
func TestTopicAdmin(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	greeting, logs, _ := greeted(t, "127.0.0.1:0", dir)
	base := "http://" + opsAddress.FindStringSubmatch(logs.String())[1]
	users := "http://" + listening.FindStringSubmatch(greeting)[1]
	key, err := auth.ReadKey(filepath.Join(dir, "auth.key"))
	if err != nil {
		t.Fatal(err)
	}
	ada, err := key.IssueOperator("ada", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	client := func(token, url string) topicv1connect.TopicAdminServiceClient {
		return topicv1connect.NewTopicAdminServiceClient(&http.Client{Transport: bearer{token, newTransport(t, true)}}, url)
	}
	topics := topicv1connect.NewTopicServiceClient(&http.Client{Transport: bearer{ada, newTransport(t, true)}}, base)
	subscriptions := topicv1connect.NewSubscriptionServiceClient(
		&http.Client{Transport: bearer{ada, newTransport(t, true)}}, base)
	_, err = topics.ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "t",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = subscriptions.CreateSubscription(t.Context(), &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = topics.SetBinding(t.Context(),
		&topicv1.SetBindingRequest{Topic: "t", Principal: "alice", Role: topicv1.Role_ROLE_ADMIN})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(c topicv1connect.TopicAdminServiceClient) error{
		"ListGroups": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.ListGroups(t.Context(), &topicv1.ListGroupsRequest{Topic: "t"})
			return err
		},
		"GetGroupMetrics": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.GetGroupMetrics(t.Context(), &topicv1.GetGroupMetricsRequest{Topic: "t", Group: "g"})
			return err
		},
		"ForceComplete": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.ForceComplete(t.Context(),
				&topicv1.ForceCompleteRequest{Topic: "t", OlderThan: durationpb.New(time.Hour), Force: true})
			return err
		},
		"ListMonitors": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.ListMonitors(t.Context(), &topicv1.ListMonitorsRequest{})
			return err
		},
		"RunJob": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.RunJob(t.Context(), &topicv1.RunJobRequest{Job: topicv1.Job_JOB_SUBSCRIPTIONS})
			return err
		},
		"GetJobs": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.GetJobs(t.Context(), &topicv1.GetJobsRequest{})
			return err
		},
		"ListAudit": func(c topicv1connect.TopicAdminServiceClient) error {
			_, err := c.ListAudit(t.Context(), &topicv1.ListAuditRequest{Topic: "t"})
			return err
		},
	}
	removal := func(c topicv1connect.TopicAdminServiceClient) error {
		_, err := c.RemoveGroup(t.Context(), &topicv1.RemoveGroupRequest{Topic: "t", Group: "g"})
		return err
	}
	for who, c := range map[string]topicv1connect.TopicAdminServiceClient{
		"a user": client(token(t, dir, "alice"), base), "a stranger": client("forged", base), "nobody": client("", base),
	} {
		testkit.Equal(t, who+": RemoveGroup", connect.CodeOf(removal(c)), connect.CodeUnauthenticated)
		for name, call := range calls {
			testkit.Equal(t, who+": "+name, connect.CodeOf(call(c)), connect.CodeUnauthenticated)
		}
	}
	for who, c := range map[string]topicv1connect.TopicAdminServiceClient{
		"a user": client(token(t, dir, "alice"), users), "an operator": client(ada, users),
	} {
		if code := connect.CodeOf(removal(c)); code != connect.CodeUnimplemented && code != connect.CodeUnauthenticated {
			t.Errorf("%s on the listener of users: %s", who, code)
		}
	}
	c := client(ada, base)
	for name, call := range calls {
		if err := call(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := removal(c); err != nil {
		t.Error(err)
	}
	_, err = c.Resurrect(t.Context(), &topicv1.ResurrectRequest{Topic: "t", Group: "g"})
	testkit.Equal(t, "an unknown group", connect.CodeOf(err), connect.CodeNotFound)
	_, err = c.RunJob(t.Context(), &topicv1.RunJobRequest{})
	testkit.Equal(t, "no job", connect.CodeOf(err), connect.CodeInvalidArgument)
	_, err = c.ListAudit(t.Context(), &topicv1.ListAuditRequest{PageToken: "x"})
	testkit.Equal(t, "a page of another list", connect.CodeOf(err), connect.CodeInvalidArgument)

	var seen []string
	for next := ""; ; {
		page, err := c.ListAudit(t.Context(), &topicv1.ListAuditRequest{Topic: "t", PageSize: 2, PageToken: next})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.GetRecords() {
			seen = append(seen, r.GetActor()+" "+r.GetCall()+" "+r.GetCode())
		}
		if next = page.GetNextPageToken(); next == "" {
			break
		}
	}
	testkit.Equal(t, "records", strings.Join(seen, ", "), "ada Resurrect failed, ada RemoveGroup ok, "+
		"ada ForceComplete ok, ada SetBinding ok, ada CreateSubscription ok, ada ConfigureTopic ok")
	all, err := c.ListAudit(t.Context(), &topicv1.ListAuditRequest{Call: "RunJob", Actor: "ada"})
	if err != nil || len(all.GetRecords()) != 1 || all.GetRecords()[0].GetEndedAt() == nil {
		t.Error(all, err)
	}
}
