package projection

import "context"

// RebuildOnce does one step of each projection, as a process that has just started does.
func (s *Set) RebuildOnce(ctx context.Context) error {
	for _, p := range s.known {
		if err := (&rebuilder{Set: s, p: p}).step(ctx); err != nil {
			return err
		}
	}
	return nil
}
