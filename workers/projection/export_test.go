package projection

import "context"

// Look looks once for each projection whether there is something to rebuild, as a process
// that has just started does, and does it.
func (s *Set) Look(ctx context.Context) error {
	for _, p := range s.known {
		if err := (&rebuilder{Set: s, p: p}).look(ctx); err != nil {
			return err
		}
	}
	return nil
}
