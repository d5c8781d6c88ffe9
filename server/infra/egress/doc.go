// Package egress sends HTTP requests to addresses that users choose, and keeps them from reaching what
// only the server can reach.
//
// A Guard refuses an address before anything is sent to it: by its URL (Check), and again by the IP
// address that a connection is made to, so a name that resolves to a private address, or to another
// address each time, leads nowhere. It follows no redirect and uses no proxy. Operators can list hosts
// and networks that are allowed all the same.
//
// Concurrency: a Guard is safe for concurrent use.
package egress
