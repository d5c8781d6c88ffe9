package ratelimit

import (
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/gen/parley/analytics/v1/analyticsv1connect"
	"github.com/parley-chat/parley/gen/parley/auth/v1/authv1connect"
	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/gen/parley/service/v1/servicev1connect"
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/gen/parley/user/v1/userv1connect"
	"github.com/parley-chat/parley/server/limit"
)

// cost is what a call costs its caller.
type cost struct {
	// requests is charged for the user, the session and the address; 0 for calls that have
	// limits of their own, in number and not in rate.
	requests int
	// more is charged for the user, by what the call does to others.
	more func(m any) []charge
	// programs says that programs pay for more, too.
	programs bool
	// tokenless says that the call needs no known caller. Of others, who is not known has shown
	// no token that anybody issued.
	tokenless bool
	// waits says that the call is not an answer as fast as can be: it waits for something to
	// happen, or is large. How long it takes says nothing about the process.
	waits bool
}

// charge is a cost by a rule. Accounts that are new are charged by young, too.
type charge struct {
	rule, young limit.Name
	cost        int
}

// isChat reports whether charges are those of a direct chat that is made.
func isChat(list []charge) bool { return len(list) > 0 && list[0].rule == limit.CreateDirect }

// Costs of requests: a read of a few rows is 1.
const (
	row   = 1
	page  = 3
	write = 2
	heavy = 10 // reads everything of a user; rules of requests hold as much (limit.Rule.Least)
)

// costs has a line for each procedure of users. Messages on topics pass through sessions with
// credits and queues with bounds, and publishers may send thousands a second: they pay for the
// messages that they publish, and not for the requests.
var costs = map[string]cost{
	chatv1connect.ChatServiceCreateChatProcedure:       {requests: heavy, more: createChat},
	chatv1connect.ChatServiceGetChatProcedure:          {requests: row},
	chatv1connect.ChatServiceListChatsProcedure:        {requests: page},
	chatv1connect.ChatServiceListMembersProcedure:      {requests: page},
	chatv1connect.ChatServiceAddMemberProcedure:        {requests: write, more: each(limit.AddMember, limit.NewAddMember)},
	chatv1connect.ChatServiceRemoveMemberProcedure:     {requests: write},
	chatv1connect.ChatServiceLeaveChatProcedure:        {requests: write},
	chatv1connect.ChatServiceUpdateMemberRoleProcedure: {requests: write},
	chatv1connect.ChatServiceUpdateChatProcedure:       {requests: write},
	chatv1connect.ChatServiceMuteChatProcedure:         {requests: write},
	chatv1connect.ChatServiceUnmuteChatProcedure:       {requests: write},
	chatv1connect.ChatServiceArchiveChatProcedure:      {requests: write},
	chatv1connect.ChatServiceUnarchiveChatProcedure:    {requests: write},

	deliveryv1connect.DeliveryServiceSyncProcedure:      {requests: heavy, waits: true},
	deliveryv1connect.DeliveryServiceSubscribeProcedure: {requests: heavy, more: subscribed},
	deliveryv1connect.DeliveryServiceAckProcedure:       {requests: row},
	deliveryv1connect.DeliveryServiceExtendProcedure:    {requests: row},

	messagev1connect.MessageServiceSendMessageProcedure:  {requests: write, more: each(limit.Send, limit.NewSend)},
	messagev1connect.MessageServiceListMessagesProcedure: {requests: page},
	messagev1connect.MessageServiceListChangesProcedure:  {requests: page},
	messagev1connect.MessageServiceMarkReadProcedure:     {requests: row},

	analyticsv1connect.AnalyticsServiceRecordProcedure:      {requests: row},
	analyticsv1connect.AnalyticsServiceRecordBatchProcedure: {requests: page},

	authv1connect.AuthServiceRequestCodeProcedure:        {requests: write, tokenless: true},
	authv1connect.AuthServiceVerifyCodeProcedure:         {requests: write, tokenless: true},
	authv1connect.AuthServiceExchangeTokenProcedure:      {requests: write, tokenless: true},
	authv1connect.AuthServiceRefreshProcedure:            {requests: write, tokenless: true},
	authv1connect.AuthServiceSignOutProcedure:            {requests: write},
	authv1connect.AuthServiceListSessionsProcedure:       {requests: row},
	authv1connect.AuthServiceCreateStreamTicketProcedure: {requests: write}, // of the row that it leaves when it is used
	authv1connect.AuthServiceRevokeSessionProcedure:      {requests: write},
	authv1connect.AuthServiceRevokeAllSessionsProcedure:  {requests: write},

	userv1connect.UserServiceGetProfileProcedure:         {requests: row},
	userv1connect.UserServiceBatchGetProfilesProcedure:   {requests: page},
	userv1connect.UserServiceUpdateProfileProcedure:      {requests: heavy, more: each(limit.UpdateProfile, "")},
	userv1connect.UserServiceSetHandleProcedure:          {requests: heavy, more: each(limit.UpdateProfile, "")},
	userv1connect.UserServiceLookupByHandleProcedure:     {requests: page},
	userv1connect.UserServiceLookupByIdentifierProcedure: {requests: heavy, more: each(limit.Lookup, "")},
	userv1connect.UserServiceGetSettingsProcedure:        {requests: row},
	userv1connect.UserServiceUpdateSettingsProcedure:     {requests: write},
	userv1connect.UserServiceBlockUserProcedure:          {requests: write},
	userv1connect.UserServiceUnblockUserProcedure:        {requests: write},
	userv1connect.UserServiceListBlockedProcedure:        {requests: page},
	userv1connect.UserServiceInviteToChatProcedure:       {requests: write, more: each(limit.Invite, "")},
	userv1connect.UserServiceListInvitationsProcedure:    {requests: page},
	userv1connect.UserServiceAcceptInvitationProcedure:   {requests: write},
	userv1connect.UserServiceDeclineInvitationProcedure:  {requests: write},
	userv1connect.UserServiceDeleteAccountProcedure:      {requests: heavy},
	userv1connect.UserServiceExportDataProcedure:         {requests: heavy, more: each(limit.Export, ""), waits: true},

	servicev1connect.BackendServiceIssueUserTokenProcedure: {requests: row},
	servicev1connect.BackendServiceEndUserSessionProcedure: {requests: write},
	servicev1connect.BackendServiceCreateUserProcedure:     {requests: write},

	topicv1connect.TopicServiceConfigureTopicProcedure:            {requests: write},
	topicv1connect.TopicServiceGetTopicProcedure:                  {requests: row},
	topicv1connect.TopicServiceListTopicsProcedure:                {requests: page},
	topicv1connect.TopicServiceDeleteTopicProcedure:               {requests: write},
	topicv1connect.TopicServiceRecommendModeProcedure:             {requests: row},
	topicv1connect.TopicServicePublishProcedure:                   {more: published, programs: true, waits: true},
	topicv1connect.TopicServiceGetProducerProcedure:               {requests: row},
	topicv1connect.TopicServiceGetMessageStatusProcedure:          {requests: row},
	topicv1connect.TopicServiceGetMessageProcedure:                {requests: row},
	topicv1connect.TopicServiceBrowseMessagesProcedure:            {requests: page},
	topicv1connect.TopicServicePurgeMessagesProcedure:             {requests: write, waits: true},
	topicv1connect.TopicServiceListBindingsProcedure:              {requests: page},
	topicv1connect.TopicServiceSetBindingProcedure:                {requests: write},
	topicv1connect.TopicServiceRemoveBindingProcedure:             {requests: write},
	topicv1connect.SubscriptionServiceCreateSubscriptionProcedure: {requests: write},
	topicv1connect.SubscriptionServiceUpdateSubscriptionProcedure: {requests: write},
	topicv1connect.SubscriptionServiceGetSubscriptionProcedure:    {requests: row},
	topicv1connect.SubscriptionServiceListSubscriptionsProcedure:  {requests: page},
	topicv1connect.SubscriptionServicePauseSubscriptionProcedure:  {requests: write},
	topicv1connect.SubscriptionServiceResumeSubscriptionProcedure: {requests: write},
	topicv1connect.SubscriptionServiceCancelSubscriptionProcedure: {requests: write},
	topicv1connect.SubscriptionServiceSeekSubscriptionProcedure:   {requests: write},
	topicv1connect.SubscriptionServiceUnparkKeysProcedure:         {requests: write},
	topicv1connect.SubscriptionServiceHeartbeatProcedure:          {requests: row},
	topicv1connect.ConsumerServiceConsumeProcedure:                {waits: true},
	topicv1connect.ConsumerServiceConsumeBidiProcedure:            {waits: true},
	topicv1connect.ConsumerServicePullProcedure:                   {waits: true},
	topicv1connect.ConsumerServiceAckProcedure:                    {waits: true},
	topicv1connect.ConsumerServiceNackProcedure:                   {waits: true},
	topicv1connect.ConsumerServiceExtendProcedure:                 {waits: true},
	topicv1connect.ConsumerServiceAddCreditsProcedure:             {waits: true},
	topicv1connect.ConsumerServiceDetachProcedure:                 {waits: true},
	topicv1connect.BackfillServiceStartBackfillProcedure:          {requests: heavy},
	topicv1connect.BackfillServiceCancelBackfillProcedure:         {requests: write},
	topicv1connect.BackfillServiceGetBackfillProcedure:            {requests: row},
	topicv1connect.BackfillServiceWatchBackfillProcedure:          {requests: row, waits: true},
}

// undeclared is what a procedure costs that has no line; a test finds them.
var undeclared = cost{requests: write}

func costOf(procedure string) cost {
	if c, ok := costs[procedure]; ok {
		return c
	}
	return undeclared
}

// each charges a rule with one for each call.
func each(rule, young limit.Name) func(any) []charge {
	list := []charge{{rule, young, 1}}
	return func(any) []charge { return list }
}

// subscribed charges a stream; one that ends behind what was missed costs what Sync does.
func subscribed(m any) []charge {
	if req, ok := m.(*deliveryv1.SubscribeRequest); ok && req.GetCatchUpOnly() {
		return nil
	}
	return []charge{{limit.Subscribe, "", 1}}
}

// published charges messages and their bytes.
func published(m any) []charge {
	req, ok := m.(*topicv1.PublishRequest)
	if !ok {
		return nil
	}
	kilobytes := (proto.Size(req) + 1023) / 1024
	return []charge{{limit.TopicMessages, "", len(req.GetMessages())}, {limit.TopicKilobytes, "", kilobytes}}
}

// createChat charges a group and its members, or the chat of two.
func createChat(m any) []charge {
	req, ok := m.(*chatv1.CreateChatRequest)
	switch {
	case !ok:
		return nil
	case req.GetType() == chatv1.ChatType_CHAT_TYPE_DIRECT:
		return []charge{{limit.CreateDirect, limit.NewCreateDirect, 1}}
	}
	return []charge{{limit.CreateGroup, limit.NewCreateGroup, 1},
		{limit.AddMember, limit.NewAddMember, len(req.GetMemberIds())}}
}
