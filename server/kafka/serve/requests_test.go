package serve_test

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/serve"
)

func asTimeout(err error, ne *net.Error) bool { return errors.As(err, ne) && (*ne).Timeout() }

// announced are the requests that the server answers, in the form of a table: name, versions.
const announced = `Produce 0-13
Fetch 4-18
ListOffsets 1-11
Metadata 0-13
OffsetCommit 2-10
OffsetFetch 1-10
FindCoordinator 0-6
JoinGroup 2-9
Heartbeat 0-4
LeaveGroup 0-5
SyncGroup 0-5
DescribeGroups 0-6
ListGroups 0-5
SASLHandshake 0-1
ApiVersions 0-4
CreateTopics 2-7
DeleteTopics 1-6
DeleteRecords 0-2
InitProducerID 0-5
OffsetForLeaderEpoch 2-4
AddPartitionsToTxn 0-3
EndTxn 0-5
CreateACLs 1-3
DeleteACLs 1-3
DescribeConfigs 1-4
AlterConfigs 0-2
SASLAuthenticate 0-2
CreatePartitions 0-3
DeleteGroups 0-3
IncrementalAlterConfigs 0-1
OffsetDelete 0-0
DescribeCluster 0-2
DescribeTopicPartitions 0-0
`

func versions(version int16) *kmsg.ApiVersionsRequest {
	req := kmsg.NewPtrApiVersionsRequest()
	req.SetVersion(version)
	req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1.0"
	return req
}

// Each version of ApiVersions lists the same requests, before the password too.
func TestAnnounced(t *testing.T) {
	c := start(t, nil).raw(t)
	for version := range int16(5) {
		res := testkit.Value(c.send(versions(version)))(t).(*kmsg.ApiVersionsResponse)
		var text strings.Builder
		for _, k := range res.ApiKeys {
			fmt.Fprintf(&text, "%s %d-%d\n", kmsg.NameForKey(k.ApiKey), k.MinVersion, k.MaxVersion)
		}
		testkit.Equal(t, "requests", text.String(), announced)
		testkit.Equal(t, "code", res.ErrorCode, 0)
	}
}

// A request that the coordinator of groups does not answer is not announced.
func TestCoordinatorWithoutARequest(t *testing.T) {
	b := start(t, func(c *serve.Config) { c.Users, c.Groups = nil, &groupsDouble{lacks: kmsg.OffsetDelete} })
	c := b.raw(t)
	for _, k := range testkit.Value(c.send(versions(3)))(t).(*kmsg.ApiVersionsResponse).ApiKeys {
		if k.ApiKey == int16(kmsg.OffsetDelete) {
			t.Error("OffsetDelete is announced")
		}
	}
	testkit.Must(t, c.ask(usual(int16(kmsg.OffsetDelete), 0)))
	c.ends(t, "OffsetDelete")
}

// A version of ApiVersions that does not exist yet has an answer in version 0, with the versions that exist.
func TestApiVersionsOfTheFuture(t *testing.T) {
	c := start(t, nil).raw(t)
	for _, version := range []int16{5, 99, -1} {
		testkit.Must(t, c.ask(versions(version)))
		res := testkit.Value(c.answer(versions(0), c.correlation))(t).(*kmsg.ApiVersionsResponse)
		testkit.Equal(t, "code", res.ErrorCode, kerr.UnsupportedVersion.Code)
		testkit.Equal(t, "keys", len(res.ApiKeys), 1)
		k := res.ApiKeys[0]
		testkit.Equal(t, "versions", []int16{k.ApiKey, k.MinVersion, k.MaxVersion}, []int16{18, 0, 4})
	}
	req := versions(3)
	for _, name := range []string{"", "-a", "a-", "a b"} {
		req.ClientSoftwareName = name
		res := testkit.Value(c.send(req))(t).(*kmsg.ApiVersionsResponse)
		testkit.Equal(t, "code of "+name, res.ErrorCode, kerr.InvalidRequest.Code)
	}
}

// usual makes a request that names what there is.
func usual(key, version int16) kmsg.Request {
	req := kmsg.RequestForKey(key)
	if d, ok := req.(interface{ Default() }); ok {
		d.Default()
	}
	req.SetVersion(version)
	switch r := req.(type) {
	case *kmsg.ApiVersionsRequest:
		r.ClientSoftwareName, r.ClientSoftwareVersion = "test", "1"
	case *kmsg.SASLHandshakeRequest:
		r.Mechanism = "SCRAM-SHA-256"
	case *kmsg.ProduceRequest:
		r.Acks = -1
		fill(reflect.ValueOf(&r.Topics))
	case *kmsg.FetchRequest:
		r.MaxWaitMillis, r.MaxBytes, r.SessionEpoch, r.ReplicaID, r.ReplicaState.ID = 0, 1<<20, -1, -1, -1
		fill(reflect.ValueOf(&r.Topics))
	case *kmsg.DescribeClusterRequest:
		r.EndpointType = 1
	case *kmsg.FindCoordinatorRequest:
		r.CoordinatorKey, r.CoordinatorKeys = "mine", []string{"mine", "other"}
	default:
		fill(reflect.ValueOf(req).Elem())
		req.SetVersion(version)
	}
	return req
}

// fill gives every list one element and every topic the name and the id of one that exists.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte{1})
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if d, ok := v.Index(0).Addr().Interface().(interface{ Default() }); ok {
			d.Default()
		}
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "Version" && name != "UnknownTags" && name != "Cursor" {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString(events)
	case reflect.Array:
		v.Index(0).SetUint(1)
	case reflect.Int8:
		if v.Type() == reflect.TypeFor[kmsg.ConfigResourceType]() {
			v.SetInt(int64(kmsg.ConfigResourceTypeTopic))
		}
	default:
	}
}

// codes collects all error codes of an answer.
func codes(v reflect.Value) []int16 {
	var list []int16
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			list = codes(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			list = append(list, codes(v.Index(i))...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name == "ErrorCode" {
				list = append(list, int16(v.Field(i).Int()))
			} else if v.Type().Field(i).IsExported() {
				list = append(list, codes(v.Field(i))...)
			}
		}
	default:
	}
	return list
}

// refused are the codes of requests that would change something, one of which is in each version's answer.
var refused = map[kmsg.Key][]int16{
	kmsg.Produce: {29}, kmsg.InitProducerID: {53}, kmsg.CreateTopics: {29}, kmsg.DeleteTopics: {29},
	kmsg.DeleteRecords: {29}, kmsg.CreatePartitions: {29}, kmsg.AlterConfigs: {29},
	kmsg.IncrementalAlterConfigs: {29}, kmsg.AddPartitionsToTxn: {53}, kmsg.EndTxn: {53}, kmsg.CreateACLs: {31},
	kmsg.DeleteACLs: {31},
}

// Every version of every announced request has an answer in its form, with the codes of the table.
func TestEveryVersionIsAnswered(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	res := testkit.Value(c.send(versions(3)))(t).(*kmsg.ApiVersionsResponse)
	for _, k := range res.ApiKeys {
		key := kmsg.Key(k.ApiKey)
		if key == kmsg.SASLHandshake || key == kmsg.SASLAuthenticate {
			continue // TestSCRAM
		}
		for version := k.MinVersion; version <= k.MaxVersion; version++ {
			res, err := c.send(usual(k.ApiKey, version))
			if err != nil {
				t.Fatalf("%s %d: %v", key.Name(), version, err)
			}
			got := codes(reflect.ValueOf(res))
			want := refused[key]
			slices.Sort(got)
			got = slices.Compact(got)
			if want == nil && len(got) > 0 {
				want = []int16{0}
			}
			if version >= 4 && key == kmsg.InitProducerID { // one more field
				want = []int16{53}
			}
			got = slices.DeleteFunc(got, func(code int16) bool { return code == 0 && refused[key] != nil })
			if !slices.Equal(got, want) {
				t.Errorf("%s %d: codes %v, expected %v", key.Name(), version, got, want)
			}
		}
	}
	want := serve.Client{User: "anyone", ID: "raw", Host: "127.0.0.1"}
	if n := len(b.groups.clients); n == 0 || b.groups.clients[0] != want {
		t.Errorf("the coordinator was asked by %+v", b.groups.clients)
	}
}

// What is not announced ends its connection: other requests, and other versions.
func TestEverythingElseEndsTheConnection(t *testing.T) {
	b := start(t, open)
	var known []int16
	for _, k := range testkit.Value(b.raw(t).send(versions(3)))(t).(*kmsg.ApiVersionsResponse).ApiKeys {
		known = append(known, k.ApiKey)
		for _, version := range []int16{k.MinVersion - 1, k.MaxVersion + 1} {
			if k.ApiKey == int16(kmsg.ApiVersions) {
				continue
			}
			c := b.raw(t)
			testkit.Must(t, c.ask(usual(k.ApiKey, version)))
			c.ends(t, kmsg.NameForKey(k.ApiKey))
		}
	}
	for key := range int16(kmsg.MaxKey + 1) {
		if req := kmsg.RequestForKey(key); req != nil && !slices.Contains(known, key) {
			c := b.raw(t)
			testkit.Must(t, c.ask(req))
			c.ends(t, kmsg.NameForKey(key))
		}
	}
	silent := usual(int16(kmsg.Produce), 9).(*kmsg.ProduceRequest)
	silent.Acks = 0
	c := b.raw(t)
	testkit.Must(t, c.ask(silent))
	c.ends(t, "Produce without acknowledgement")
}
