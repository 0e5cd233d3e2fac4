// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// Broker publishes and subscribes. All methods may be called at once.
type Broker interface {
	// Publish returns when the broker has the event for good. The event's partitionkey
	// (api/events) says which events are kept in order.
	Publish(ctx context.Context, topic string, event cloudevents.Event) error
	// Subscribe hands the topic's events to the handler until ctx ends, and then returns
	// nil when those in work are handled. Each id gets all events that are published after
	// it subscribed for the first time. Of subscribers with one id one has them at a time,
	// and another one when that is gone.
	Subscribe(ctx context.Context, topic, subscriptionID string, handle Handler) error
	// Health says why the broker can't be used now; nil if it can.
	Health(ctx context.Context) error
	// Close ends all; it waits for what is in work until ctx ends.
	Close(ctx context.Context) error
}

// Handler handles one event. Nil: the event is done. An error: it is delivered again,
// with backoff, and after MaxDeliveries it goes to the dead letters. An error marked with
// Poison goes there at once. While an event of a resource waits for its next try, later
// ones of the same resource wait behind it; those of others don't. One that says the same
// as the last in line, which no handler has seen yet, is folded into that.
//
// An event may come more than once: when a process, the broker or the connection between
// them is lost before the event is known to be done. It may then come after later ones of
// its resource, but two of one resource are in work at once only if a process that was
// taken for gone is not.
type Handler func(ctx context.Context, event cloudevents.Event) error
