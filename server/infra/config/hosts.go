package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
)

// maxHosts bounds a list of hosts.
const maxHosts = 100

// anyHost stands for every name.
const anyHost = "any"

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*$`)

// parseAllowedHosts takes a list of names or addresses of hosts, without ports, or any.
func parseAllowedHosts(s *Settings, value string) (err error) {
	s.AllowedHosts, err = parseHosts(value)
	if s.AnyHost = slices.Equal(s.AllowedHosts, []string{anyHost}); s.AnyHost {
		s.AllowedHosts = nil
	}
	return err
}

func parseHosts(s string) (list []string, err error) {
	if s == "" {
		return nil, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		name := strings.ToLower(strings.TrimSpace(item))
		if ip := net.ParseIP(strings.Trim(name, "[]")); ip != nil {
			list = append(list, ip.String())
			continue
		}
		if len(name) > 253 || !hostName.MatchString(name) {
			return nil, fmt.Errorf("must be names of hosts without ports, such as chat.example.com, with commas between them, or any, not %.100q", item)
		}
		list = append(list, name)
	}
	if len(list) > maxHosts || len(list) > 1 && slices.Contains(list, anyHost) {
		return nil, fmt.Errorf("must be at most %d names, or any alone", maxHosts)
	}
	return list, nil
}
