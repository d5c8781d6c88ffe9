package serve

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// describeConfigs shows the configuration of topics and of the broker. A resource that the request names more
// than once has one answer, because an answer is much larger than what requests it.
func (c *conn) describeConfigs(_ context.Context, _ header, req *kmsg.DescribeConfigsRequest) (kmsg.Response, error) {
	type key struct {
		kind kmsg.ConfigResourceType
		name string
	}
	seen := map[key]bool{}
	res := kmsg.NewPtrDescribeConfigsResponse()
	for _, r := range req.Resources {
		k := key{r.ResourceType, r.ResourceName}
		if seen[k] {
			continue
		}
		seen[k] = true
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = r.ResourceType, r.ResourceName
		configs, source, code := c.server.configs(r.ResourceType, r.ResourceName)
		rr.ErrorCode = code
		for _, name := range slices.Sorted(maps.Keys(configs)) {
			if r.ConfigNames != nil && !slices.Contains(r.ConfigNames, name) {
				continue
			}
			rr.Configs = append(rr.Configs, config(name, configs[name], source, req.IncludeSynonyms))
		}
		res.Resources = append(res.Resources, rr)
	}
	return res, nil
}

// configs returns the configuration of a resource and its source, or a code.
func (s *Server) configs(kind kmsg.ConfigResourceType, name string) (map[string]string, kmsg.ConfigSource, int16) {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		if t := s.catalog.now().names[name]; t != nil {
			return t.Configs, kmsg.ConfigSourceDynamicTopicConfig, 0
		}
		return nil, 0, missing(&name)
	case kmsg.ConfigResourceTypeBroker:
		if name == strconv.Itoa(node) {
			return s.Configs, kmsg.ConfigSourceStaticBrokerConfig, 0
		}
		if name == "" { // the dynamic defaults of all brokers, of which there are none
			return nil, 0, 0
		}
		return nil, 0, kerr.InvalidRequest.Code
	default:
		return nil, 0, configRefusal(kind)
	}
}

func config(name, value string, source kmsg.ConfigSource, synonyms bool) kmsg.DescribeConfigsResponseResourceConfig {
	e := kmsg.NewDescribeConfigsResponseResourceConfig()
	e.Name, e.Value, e.Source, e.ReadOnly, e.ConfigType = name, &value, source, true, kmsg.ConfigTypeString
	if synonyms {
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = name, &value, source
		e.ConfigSynonyms = append(e.ConfigSynonyms, s)
	}
	return e
}
