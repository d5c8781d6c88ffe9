package serve

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refuse makes a handler of a function that makes the response; nil: there is none, and the connection ends.
func refuse[Q kmsg.Request](f func(Q) kmsg.Response) handler {
	return func(_ *conn, _ context.Context, _ header, req kmsg.Request) (kmsg.Response, error) {
		if res := f(req.(Q)); res != nil { // parse made the request by the same key
			return res, nil
		}
		return nil, errRefused
	}
}

// Refusals have the code that Kafka's authorizer gives to a user who may only read, in each place of
// the response where a client looks for it.

func refuseProduce(req *kmsg.ProduceRequest) kmsg.Response {
	if req.Acks == 0 { // there is no response that could say so
		return nil
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
	return res
}

func refuseInitProducerID(req *kmsg.InitProducerIDRequest) kmsg.Response {
	res := kmsg.NewPtrInitProducerIDResponse()
	res.ErrorCode, res.ProducerID, res.ProducerEpoch = kerr.ClusterAuthorizationFailed.Code, -1, -1
	if req.TransactionalID != nil {
		res.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
	}
	return res
}

func refuseCreateTopics(req *kmsg.CreateTopicsRequest) kmsg.Response {
	res := kmsg.NewPtrCreateTopicsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode = t.Topic, kerr.TopicAuthorizationFailed.Code
		rt.NumPartitions, rt.ReplicationFactor = -1, -1
		res.Topics = append(res.Topics, rt)
	}
	return res
}

func refuseDeleteTopics(req *kmsg.DeleteTopicsRequest) kmsg.Response {
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
	return res
}

func refuseDeleteRecords(req *kmsg.DeleteRecordsRequest) kmsg.Response {
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
	return res
}

func refuseCreatePartitions(req *kmsg.CreatePartitionsRequest) kmsg.Response {
	res := kmsg.NewPtrCreatePartitionsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic, rt.ErrorCode = t.Topic, kerr.TopicAuthorizationFailed.Code
		res.Topics = append(res.Topics, rt)
	}
	return res
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

func refuseAlterConfigs(req *kmsg.AlterConfigsRequest) kmsg.Response {
	res := kmsg.NewPtrAlterConfigsResponse()
	for _, r := range req.Resources {
		rr := kmsg.NewAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, configRefusal(r.ResourceType)
		res.Resources = append(res.Resources, rr)
	}
	return res
}

func refuseIncrementalAlterConfigs(req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	res := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for _, r := range req.Resources {
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, configRefusal(r.ResourceType)
		res.Resources = append(res.Resources, rr)
	}
	return res
}

func refuseAddPartitionsToTxn(req *kmsg.AddPartitionsToTxnRequest) kmsg.Response {
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
	return res
}

func refuseEndTxn(_ *kmsg.EndTxnRequest) kmsg.Response {
	res := kmsg.NewPtrEndTxnResponse()
	res.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
	return res
}

func refuseCreateACLs(req *kmsg.CreateACLsRequest) kmsg.Response {
	res := kmsg.NewPtrCreateACLsResponse()
	for range req.Creations {
		r := kmsg.NewCreateACLsResponseResult()
		r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		res.Results = append(res.Results, r)
	}
	return res
}

func refuseDeleteACLs(req *kmsg.DeleteACLsRequest) kmsg.Response {
	res := kmsg.NewPtrDeleteACLsResponse()
	for range req.Filters {
		r := kmsg.NewDeleteACLsResponseResult()
		r.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		res.Results = append(res.Results, r)
	}
	return res
}
