package refusal

import "errors"

// Of returns the refusal in an error, if there is one.
func Of(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}
