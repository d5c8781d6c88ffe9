package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Refusals have the code that Kafka's authorizer gives to a user who may only read, in each place of
// the response where a client looks for it.

func refuseProduce(_ *conn, _ context.Context, _ header, req *kmsg.ProduceRequest) (kmsg.Response, error) {
	if req.Acks == 0 { // there is no response that could say so
		return nil, errRefused
	}
	res := kmsg.NewPtrProduceResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, kerr.TopicAuthorizationFailed.Code
			rp.BaseOffset, rp.LogAppendTime, rp.LogStartOffset = -1, -1, -1
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

func refuseInitProducerID(_ *conn, _ context.Context, _ header,
	req *kmsg.InitProducerIDRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrInitProducerIDResponse()
	res.ErrorCode, res.ProducerID, res.ProducerEpoch = kerr.ClusterAuthorizationFailed.Code, -1, -1
	if req.TransactionalID != nil {
		res.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
	}
	return res, nil
}

func refuseCreateTopics(_ *conn, _ context.Context, _ header, req *kmsg.CreateTopicsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrCreateTopicsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode = t.Topic, kerr.TopicAuthorizationFailed.Code
		rt.NumPartitions, rt.ReplicationFactor = -1, -1
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

func refuseDeleteTopics(_ *conn, _ context.Context, _ header, req *kmsg.DeleteTopicsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrDeleteTopicsResponse()
	add := func(name *string, id [16]byte) {
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID, rt.ErrorCode = name, id, kerr.TopicAuthorizationFailed.Code
		res.Topics = append(res.Topics, rt)
	}
	for _, t := range req.Topics {
		add(t.Topic, t.TopicID)
	}
	for _, name := range req.TopicNames {
		add(&name, [16]byte{})
	}
	return res, nil
}

func refuseDeleteRecords(_ *conn, _ context.Context, _ header,
	req *kmsg.DeleteRecordsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrDeleteRecordsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition, rp.LowWatermark, rp.ErrorCode = p.Partition, -1, kerr.TopicAuthorizationFailed.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

func refuseCreatePartitions(_ *conn, _ context.Context, _ header,
	req *kmsg.CreatePartitionsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrCreatePartitionsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic, rt.ErrorCode = t.Topic, kerr.TopicAuthorizationFailed.Code
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

// configRefusal is the code for a change of a resource's configuration.
func configRefusal(kind kmsg.ConfigResourceType) int16 {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		return kerr.TopicAuthorizationFailed.Code
	case kmsg.ConfigResourceTypeGroupConfig:
		return kerr.GroupAuthorizationFailed.Code
	default:
		return kerr.ClusterAuthorizationFailed.Code
	}
}

func refuseAlterConfigs(_ *conn, _ context.Context, _ header, req *kmsg.AlterConfigsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrAlterConfigsResponse()
	for _, r := range req.Resources {
		rr := kmsg.NewAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, configRefusal(r.ResourceType)
		res.Resources = append(res.Resources, rr)
	}
	return res, nil
}

func refuseIncrementalAlterConfigs(_ *conn, _ context.Context, _ header,
	req *kmsg.IncrementalAlterConfigsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for _, r := range req.Resources {
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, configRefusal(r.ResourceType)
		res.Resources = append(res.Resources, rr)
	}
	return res, nil
}

func refuseAddPartitionsToTxn(_ *conn, _ context.Context, _ header,
	req *kmsg.AddPartitionsToTxnRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrAddPartitionsToTxnResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewAddPartitionsToTxnResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p, kerr.TransactionalIDAuthorizationFailed.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

func refuseEndTxn(_ *conn, _ context.Context, _ header, _ *kmsg.EndTxnRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrEndTxnResponse()
	res.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
	return res, nil
}

func refuseCreateACLs(_ *conn, _ context.Context, _ header, req *kmsg.CreateACLsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrCreateACLsResponse()
	for range req.Creations {
		r := kmsg.NewCreateACLsResponseResult()
		r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		res.Results = append(res.Results, r)
	}
	return res, nil
}

func refuseDeleteACLs(_ *conn, _ context.Context, _ header, req *kmsg.DeleteACLsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrDeleteACLsResponse()
	for range req.Filters {
		r := kmsg.NewDeleteACLsResponseResult()
		r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		res.Results = append(res.Results, r)
	}
	return res, nil
}
