package people

import "github.com/parley-chat/parley/server/store"

// Account is a service account. Table services, key "accounts" and account id.
type Account struct {
	ID          string
	Description string
	Scopes      []string
	Disabled    bool  // for ever
	CreatedAt   int64 // unix ms
	CreatedBy   string
}

// Accounts is the partition of all accounts.
const Accounts = "accounts"

// AttrDisabled is the attribute that says that an account has ended.
const AttrDisabled = "disabled"

// AttrScopes is the attribute with the rights of an account.
const AttrScopes = "scopes"

// AccountKey is the key of an account.
func AccountKey(id string) store.Key { return store.Key{Table: store.Services, PK: Accounts, SK: id} }

// Item returns the row as an item.
func (a Account) Item() store.Item {
	list := []store.Attr{
		{Name: "created_at", Value: store.Int(a.CreatedAt)},
		{Name: "created_by", Value: store.String(a.CreatedBy)},
		{Name: "description", Value: store.String(a.Description)},
		{Name: AttrScopes, Value: store.List(a.Scopes)},
	}
	if a.Disabled {
		list = append(list, store.Attr{Name: AttrDisabled, Value: store.Bool(true)})
	}
	return store.NewItem(list...)
}

// AccountFrom reads the row of an account.
func AccountFrom(id string, it store.Item) Account {
	return Account{
		ID: id, Description: it.Get("description").Str(), Scopes: it.Get(AttrScopes).Strings(),
		Disabled: it.Get(AttrDisabled).True(), CreatedAt: it.Get("created_at").Int64(),
		CreatedBy: it.Get("created_by").Str(),
	}
}

// ServiceKey is a key of a service account, of which the row has a hash only. Table services,
// key "keys/" with the account's id and key id.
type ServiceKey struct {
	Account   string
	ID        string
	Hash      []byte // SHA-256 of the whole key
	CreatedAt int64  // unix ms
	CreatedBy string
	ExpiresAt int64 // unix ms; 0: never
	Revoked   bool
}

// AttrRevoked is the attribute that says that a key was revoked.
const AttrRevoked = "revoked"

// ServiceKeys is the partition of the keys of an account.
func ServiceKeys(account string) string { return "keys/" + account }

// ServiceKeyKey is the key of the row of a key.
func ServiceKeyKey(account, id string) store.Key {
	return store.Key{Table: store.Services, PK: ServiceKeys(account), SK: id}
}

// Item returns the row as an item.
func (k ServiceKey) Item() store.Item {
	list := []store.Attr{
		{Name: "created_at", Value: store.Int(k.CreatedAt)},
		{Name: "created_by", Value: store.String(k.CreatedBy)},
		{Name: "hash", Value: store.Bytes(k.Hash)},
	}
	if k.ExpiresAt != 0 {
		list = append(list, store.Attr{Name: "ends_at", Value: store.Int(k.ExpiresAt)})
	}
	if k.Revoked {
		list = append(list, store.Attr{Name: AttrRevoked, Value: store.Bool(true)})
	}
	return store.NewItem(list...)
}

// ServiceKeyFrom reads the row of a key.
func ServiceKeyFrom(account, id string, it store.Item) ServiceKey {
	return ServiceKey{
		Account: account, ID: id, Hash: it.Get("hash").Blob(), CreatedAt: it.Get("created_at").Int64(),
		CreatedBy: it.Get("created_by").Str(), ExpiresAt: it.Get("ends_at").Int64(), Revoked: it.Get(AttrRevoked).True(),
	}
}
