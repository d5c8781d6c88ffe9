// Package people declares the rows of identity. One file per owner holds the row types,
// their keys, their limits and their conversions to and from items, in the manner of
// package table.
//
// It owns layouts only: no rule of identity and no engine. Everything in it is pure.
package people

import "github.com/parley-chat/parley/server/store"

func str(it store.Item, name string) string { return it.Get(name).Str() }
func num(it store.Item, name string) int64  { return it.Get(name).Int64() }
