package serving

// SubscriptionManager changes subscriptions. A change holds the topic within Changing.
type SubscriptionManager struct{ engine *Engine }
