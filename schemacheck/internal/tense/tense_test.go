package tense

import "testing"

func TestPast(t *testing.T) {
	for name, want := range map[string]bool{
		"OrderPlaced": true, "order_placed": true, "order.placed": true, "ORDER_PLACED": true, "OrderPlacedV2": true,
		"OrderPlacedEvent": true, "OrderPlaced2": true, "MessageSent": true, "InvoicePaid": true, "Written": true,
		"RecordAdded": true,
		"PlaceOrder":  false, "Order": false, "OrderPlacing": false, "NewsFeed": false, "OrderEvent": false,
		"UserNeed":     false,
		"CreatedOrder": false, "": false, "Event": false, "V2": false, "AudioEmbed": false, "OrderAcked": true,
	} {
		if got := Past(name); got != want {
			t.Errorf("%q: %v (last word %q)", name, got, Last(name))
		}
	}
	if Past("CargoLoadup") || !Past("CargoLoadup", "Loadup") {
		t.Error("more words")
	}
}
