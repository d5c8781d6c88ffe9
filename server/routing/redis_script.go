package routing

import "context"

// Script runs a script on one key below the prefix. It returns integers.
func (r *Redis) Script(ctx context.Context, script, key string, args ...any) ([]int64, error) {
	out, err := r.c.Eval(ctx, script, []string{r.prefix + key}, args...).Int64Slice()
	return out, translate(err)
}
