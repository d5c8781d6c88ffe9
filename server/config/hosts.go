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

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_-]{1,63})*$`)

// hosts checks a list of names of hosts.
func hosts(s string) error {
	_, err := parseHosts(s)
	return err
}

// Hosts returns a setting that is declared as a list of names or addresses of hosts,
// without ports; all says that it is every name.
func (v Values) Hosts(name string) (list []string, all bool) {
	list, err := parseHosts(v.Get(name))
	if err != nil {
		panic("config: " + name + " is not declared as hosts")
	}
	if slices.Equal(list, []string{"any"}) {
		return nil, true
	}
	return list, false
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
	if len(list) > maxHosts || len(list) > 1 && slices.Contains(list, "any") {
		return nil, fmt.Errorf("must be at most %d names, or any alone", maxHosts)
	}
	return list, nil
}
