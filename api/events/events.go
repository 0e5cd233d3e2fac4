// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package events

// What every event of Sentinel carries.
const (
	// Source is the CloudEvents attribute source.
	Source = "hyperfleet-sentinel"
	// ContentType is that of the data; the event itself travels in structured mode as
	// application/cloudevents+json.
	ContentType = "application/json"
	// TypePrefix and TypeSuffix stand before and after the kind in lower case:
	// io.hyperfleet.cluster.reconcile.
	TypePrefix = "io.hyperfleet."
	TypeSuffix = ".reconcile"
	// UpstreamTypePrefix stands in TypePrefix's place in events of upstream's Sentinel, which
	// are handled as well.
	UpstreamTypePrefix = "com.redhat.hyperfleet."
	// ExtensionTraceParent is the W3C trace context of the pass that sent the event.
	ExtensionTraceParent = "traceparent"
	// PartitionKey is the CloudEvents partitioning extension: the resource's id. Events
	// with one key are handled in their order, one at a time.
	PartitionKey = "partitionkey"
)

// Data is what an event says by default; a Sentinel's message_data may say other things
// beside. Adapters' task files read it as event.id, event.kind and so on.
type Data struct {
	// ID of the resource, a UUID.
	ID string `json:"id"`
	// Kind of the resource, for example Cluster.
	Kind string `json:"kind"`
	// Href is the resource's path below the API's root.
	Href string `json:"href"`
	// Generation the resource had when Sentinel looked at it.
	Generation int32 `json:"generation"`
	// OwnerReferences is the parent of a resource that has one.
	OwnerReferences *Reference `json:"owner_references,omitempty"`
}

// Reference names another resource.
type Reference struct {
	ID   string `json:"id"`
	Kind string `json:"kind,omitempty"`
	Href string `json:"href,omitempty"`
}
