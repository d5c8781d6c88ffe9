package routing

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options are the settings of a connection to Redis.
type Options struct {
	// URL is redis://[user[:password]@]host:port[,host:port…][/db], or rediss:// for TLS.
	// Several hosts, or ?cluster=true, are a cluster; ?master=NAME[&sentinel_user=USER]
	// asks sentinels, which are then the hosts.
	URL      string
	Password string // instead of one in the URL, which others can read
	// PasswordNow, if given, is asked for each connection, in place of Password.
	PasswordNow func() string
	// SentinelPassword is for the sentinels themselves, if they require one.
	SentinelPassword string
	TLS              *tls.Config // for rediss; nil: the system's certificates
	Prefix           string      // of all keys and channels; "parley:"
	Clock            func() time.Time
}

// Validate checks the options without connecting.
func (o Options) Validate() error {
	_, err := o.parse()
	return err
}

func (o Options) parse() (*redis.UniversalOptions, error) {
	wrong := errors.New("redis must be redis://[user@]host:port[,host:port] or rediss://…")
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || (u.Scheme != "redis" && u.Scheme != "rediss") {
		return nil, wrong // without the cause, which would print the password
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, wrong
	}
	for name, values := range query {
		if !slices.Contains([]string{"cluster", "master", "sentinel_user"}, name) || len(values) != 1 {
			return nil, errors.New("redis takes the parameters cluster, master and sentinel_user, each once")
		}
	}
	master, cluster := query.Get("master"), query.Get("cluster")
	switch {
	case cluster != "" && cluster != "true" && cluster != "false":
		return nil, errors.New("redis: cluster must be true or false")
	case master != "" && cluster == "true":
		return nil, errors.New("redis: a cluster has no sentinels: cluster or master, not both")
	case master == "" && (o.SentinelPassword != "" || query.Get("sentinel_user") != ""):
		return nil, errors.New("redis: a user or password of sentinels needs master")
	}
	out := &redis.UniversalOptions{
		Username: u.User.Username(), Password: o.Password, ClientName: "parley", Protocol: 3,
		DialTimeout: dialTimeout, ReadTimeout: commandTimeout, WriteTimeout: commandTimeout, ContextTimeoutEnabled: true,
		MaxRetries: 1, DialerRetries: 1, PoolSize: poolSize,
		// Requests that older servers and users with few permissions answer with errors.
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MasterName: master, SentinelUsername: query.Get("sentinel_user"), SentinelPassword: o.SentinelPassword,
		IsClusterMode: cluster == "true",
	}
	if p, ok := u.User.Password(); ok && o.Password == "" {
		out.Password = p
	}
	if o.PasswordNow != nil && o.Password != "" {
		user := out.Username
		out.CredentialsProvider = func() (string, string) { return user, o.PasswordNow() }
	}
	port := "6379"
	if master != "" {
		port = "26379"
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), port)
		}
		out.Addrs = append(out.Addrs, host)
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if out.DB, err = strconv.Atoi(path); err != nil || out.DB < 0 {
			return nil, wrong
		}
		if out.DB > 0 && master == "" && (len(out.Addrs) > 1 || out.IsClusterMode) {
			return nil, errors.New("redis: a cluster has no numbered databases")
		}
	}
	if u.Scheme == "rediss" {
		if o.TLS != nil {
			out.TLSConfig = o.TLS.Clone()
		} else {
			out.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	return out, nil
}

// HoldsPassword reports whether a URL of Redis has a password in it.
func HoldsPassword(u string) bool {
	parsed, err := url.Parse(u)
	if err != nil || parsed.Host == "" {
		return false
	}
	_, ok := parsed.User.Password()
	return ok
}
