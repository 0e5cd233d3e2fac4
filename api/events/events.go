// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package events

// Attributes of every event of Sentinel.
const (
	// Source is the value of the CloudEvents attribute source.
	Source = "hyperfleet-sentinel"
	// ContentType is the content type of the data. The event itself is sent in structured mode as
	// application/cloudevents+json.
	ContentType = "application/json"
	// TypePrefix and TypeSuffix surround the lower-case kind in the event type:
	// io.hyperfleet.cluster.reconcile.
	TypePrefix = "io.hyperfleet."
	TypeSuffix = ".reconcile"
	// UpstreamTypePrefix is the type prefix of events of upstream's Sentinel, which adapters also handle.
	UpstreamTypePrefix = "com.redhat.hyperfleet."
	// ExtensionTraceParent is the CloudEvents extension with the W3C trace context of the operation that
	// published the event.
	ExtensionTraceParent = "traceparent"
	// PartitionKey is the CloudEvents partitioning extension. Its value is the resource's ID. Events with
	// the same key are handled in order, one at a time.
	PartitionKey = "partitionkey"
)

// Data is the default data of an event. A Sentinel's message_data may define other fields. Adapters'
// task files read the fields as event.id, event.kind and so on.
type Data struct {
	// ID is the UUID of the resource.
	ID string `json:"id"`
	// Kind is the kind of the resource, for example Cluster.
	Kind string `json:"kind"`
	// Href is the resource's path below the API's root.
	Href string `json:"href"`
	// Generation is the generation of the resource when Sentinel read it.
	Generation int32 `json:"generation"`
	// OwnerReferences is the parent of the resource. It is nil if the resource has no parent.
	OwnerReferences *Reference `json:"owner_references,omitempty"`
}

// Reference names another resource.
type Reference struct {
	ID   string `json:"id"`
	Kind string `json:"kind,omitempty"`
	Href string `json:"href,omitempty"`
}
