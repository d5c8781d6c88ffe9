package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// parseWebOrigins takes a list of origins of web pages, each as browsers send it; "*" stands
// for any port.
func parseWebOrigins(s *Settings, value string) (err error) {
	s.WebOrigins, err = parseOrigins(value)
	return err
}

func parseOrigins(s string) ([]string, error) {
	items := strings.Split(s, ",")
	var list []string
	for _, item := range items {
		item = strings.TrimSpace(item)
		switch {
		case item == "local":
			list = append(list, localOrigins()...)
			continue
		case item == "none" && len(items) == 1:
			return nil, nil
		case strings.Contains(item, "*"):
			return nil, errors.New("must name each origin: with * any page that gets hold of a token could use it")
		}
		origin, err := parseOrigin(item)
		if err != nil {
			return nil, err
		}
		list = append(list, origin)
	}
	return list, nil
}

// localOrigins are those of pages that this machine serves, as a developer's front end is.
func localOrigins() (list []string) {
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		for _, scheme := range []string{"http://", "https://"} {
			list = append(list, scheme+host, scheme+host+":*")
		}
	}
	return list
}

// parseOrigin returns an origin in the form in which browsers send it: in lower case, and
// without the port that is the scheme's own.
func parseOrigin(s string) (string, error) {
	u, err := url.Parse(strings.ToLower(s))
	wrong := func() error {
		return fmt.Errorf("must be origins such as https://chat.example.com or http://10.0.0.7:3000 with commas between them, local or none, not %.100q", s)
	}
	if err != nil || u.Hostname() == "" || u.User != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) {
		return "", wrong()
	}
	if strings.IndexFunc(u.Host, func(r rune) bool {
		return r <= ' ' || r > '~' ||
			strings.ContainsRune(`"'<>\`, r)
	}) >= 0 {
		return "", fmt.Errorf("must have hosts as browsers send them (xn--…), not %.100q", s)
	}
	if u.Path != "" || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#") {
		return "", fmt.Errorf("must be origins, without a path: %s://%s, not %.100q", u.Scheme, u.Host, s)
	}
	if port := u.Port(); port != "" && !isAddress(net.JoinHostPort("h", port)) || strings.HasSuffix(u.Host, ":") {
		return "", wrong()
	}
	host := u.Host
	if own := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; strings.HasSuffix(host, own) {
		host = strings.TrimSuffix(host, own)
	}
	return u.Scheme + "://" + host, nil
}
