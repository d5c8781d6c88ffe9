package ops

import (
	"slices"
	"strings"

	"github.com/parley-chat/parley/gen/parley/admin/v1/adminv1connect"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
)

// least has the procedures of each service by the least role that they want. Viewers see what
// users did not write; moderators read that, what operators did, and act on users; admins
// change the installation. A procedure that is not in the table is for admins only.
var least = map[string]map[auth.Role][]string{
	opsv1connect.OpsServiceName: {
		auth.Viewer: {"ListDeadLetters", "CountDeadLetters", "GetDeadLetter", "ListFailedOutboxRows",
			"GetConsumerGroup", "ListHotKeys", "ListTopicVersions"},
		auth.Moderator: {"ListOperatorCalls"},
		auth.Admin: {"RedriveDeadLetters", "DiscardDeadLetters", "ReplayEvents", "RepairFailedOutboxRow",
			"DropFailedOutboxRow", "MigrateTopic", "AbortTopicMigration", "RetireTopicVersion"},
	},
	opsv1connect.EventServiceName: {auth.Viewer: {"ListEvents", "GetEvent", "FoldChat"}},
	opsv1connect.ProjectionServiceName: {
		auth.Viewer: {"ListProjections", "ListNotifications", "GetChatActivity"},
		auth.Admin:  {"ChangeRebuild"},
	},
	opsv1connect.ParkedKeyServiceName: {auth.Viewer: {"ListParkedKeys"}},
	opsv1connect.BackupServiceName:    {auth.Admin: {"TakeSnapshot"}},
	adminv1connect.UserAdminServiceName: {
		auth.Viewer: {"GetUser"}, auth.Moderator: {"SuspendUser", "RestoreUser"},
	},
	adminv1connect.SessionAdminServiceName: {
		auth.Viewer: {"ListSessions"}, auth.Moderator: {"EndSession", "EndAllSessions"},
	},
	adminv1connect.ChatAdminServiceName: {
		auth.Viewer: {"GetChat", "ListChatMembers"}, auth.Moderator: {"ReadMessages"},
	},
	adminv1connect.ServiceAccountAdminServiceName: {
		auth.Viewer: {"ListServiceAccounts", "GetServiceAccount"},
		auth.Admin: {"CreateServiceAccount", "SetServiceScopes", "DisableServiceAccount", "CreateServiceKey",
			"RevokeServiceKey"},
	},
	adminv1connect.LimitAdminServiceName: {auth.Viewer: {"ListLimits", "GetLimitState"}},
	adminv1connect.AuditServiceName:      {auth.Moderator: {"ListAudit"}, auth.Admin: {"ExportAudit"}},
	topicv1connect.TopicAdminServiceName: {
		auth.Viewer:    {"ListGroups", "GetGroupMetrics", "ListMonitors", "GetJobs"},
		auth.Moderator: {"ListAudit"},
		auth.Admin:     {"RemoveGroup", "Resurrect", "ForceComplete", "RunJob"},
	},
	topicv1connect.TopicServiceName: {
		auth.Viewer:    {"GetTopic", "ListTopics", "RecommendMode", "GetMessageStatus", "ListBindings"},
		auth.Moderator: {"GetMessage", "BrowseMessages"}, // what users wrote
		auth.Admin: {"ConfigureTopic", "DeleteTopic", "Publish", "GetProducer", "SetBinding", "RemoveBinding",
			"PurgeMessages"},
	},
	topicv1connect.SubscriptionServiceName: {
		auth.Viewer: {"GetSubscription", "ListSubscriptions"},
		auth.Admin: {"CreateSubscription", "UpdateSubscription", "PauseSubscription", "ResumeSubscription",
			"CancelSubscription", "SeekSubscription", "UnparkKeys", "Heartbeat"},
	},
	topicv1connect.BackfillServiceName: {
		auth.Viewer: {"GetBackfill", "WatchBackfill"}, auth.Admin: {"StartBackfill", "CancelBackfill"},
	},
	// A consumer takes messages from a group, and reads what users wrote.
	topicv1connect.ConsumerServiceName: {
		auth.Admin: {"Consume", "ConsumeBidi", "Pull", "Ack", "Nack", "Extend", "AddCredits", "Detach"},
	},
}

// contentRole is the least role that sees the content of users, in every procedure.
const contentRole = auth.Moderator

// LeastRole returns the least role for a path of HTTP, which of a procedure is its name; ok is
// false where the table does not have it.
func LeastRole(path string) (role auth.Role, ok bool) {
	service, method, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	for role, methods := range least[service] {
		if slices.Contains(methods, method) {
			return role, true
		}
	}
	return auth.Admin, false
}

// numProcedures is the number of procedures in the table.
func numProcedures() (n int) {
	for _, byRole := range least {
		for _, methods := range byRole {
			n += len(methods)
		}
	}
	return n
}
