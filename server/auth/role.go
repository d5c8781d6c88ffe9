package auth

import "slices"

// Role is what an operator may do. Each includes those before it.
type Role string

// The roles. The packages that serve operators own the least role of each procedure.
const (
	Viewer    Role = "viewer"    // sees how the installation is, and not what users wrote
	Moderator Role = "moderator" // keeps users out and, for a reason, reads what they wrote
	Admin     Role = "admin"     // does everything
)

// Roles lists the roles, the least first.
func Roles() []Role { return []Role{Viewer, Moderator, Admin} }

// Valid reports whether there is such a role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// Includes reports whether an operator with the role may call a procedure that needs the
// role least. A text that is no role includes nothing and is included by none.
func (r Role) Includes(least Role) bool {
	return r.Valid() && least.Valid() && slices.Index(Roles(), r) >= slices.Index(Roles(), least)
}
