package people

import "github.com/parley-chat/parley/server/store"

// item makes an item of attributes; those without a value are left out.
func item(list ...store.Attr) store.Item {
	own := make([]store.Attr, 0, len(list))
	for _, a := range list {
		if a.Value.Kind() != 0 {
			own = append(own, a)
		}
	}
	return store.NewItem(own...)
}

func attr(name string, v store.Value) store.Attr { return store.Attr{Name: name, Value: v} }

// optional is a text, or no value where it is empty.
func optional(s string) store.Value {
	if s == "" {
		return store.Value{}
	}
	return store.String(s)
}
