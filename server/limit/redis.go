package limit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"
)

// Scripter runs a script on one key of Redis that returns integers.
type Scripter interface {
	Script(ctx context.Context, script, key string, args ...any) ([]int64, error)
}

// Redis is Shared in Redis. The time is Redis's own, so that clocks of processes do not
// matter; a bucket's key expires when it is full.
type Redis struct{ Redis Scripter }

var _ Shared = Redis{}

// takeScript has times in microseconds: those since 1970 fit into the numbers of Lua. A bucket
// is never further away than two windows: more means that Redis's clock was set back, and
// counts as an empty one.
const takeScript = `local t=redis.call('TIME') local now=t[1]*1000000+t[2]
local i,w,done,cost=tonumber(ARGV[1]),tonumber(ARGV[2]),tonumber(ARGV[3]),tonumber(ARGV[4])
local full=math.max(tonumber(redis.call('GET',KEYS[1]) or now),now)
if full>now+2*w then full=now+w end
full=math.max(now,math.min(full+done*i,now+2*w))
local ok=0
if full+cost*i-now<=w then ok=1 full=full+cost*i end
if full>now or done<0 then
redis.call('SET',KEYS[1],string.format('%.0f',full),'PX',math.max(1,math.ceil((full-now)/1000)))
end
return {ok,math.floor(full-now)}`

// Take implements Shared. Keys are hashed: they may be addresses of people, and of any length.
func (r Redis) Take(
	ctx context.Context, key string, b Bucket, done, cost int,
) (allowed bool, full time.Duration, err error) {
	sum := sha256.Sum256([]byte(key))
	out, err := r.Redis.Script(ctx, takeScript, "l:"+base64.RawURLEncoding.EncodeToString(sum[:18]),
		micros(b.Interval), micros(b.Window), done, cost)
	if err != nil {
		return false, 0, err
	}
	if len(out) != 2 {
		return false, 0, fmt.Errorf("limit: Redis answered %d numbers", len(out))
	}
	return out[0] == 1, time.Duration(out[1]) * time.Microsecond, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
