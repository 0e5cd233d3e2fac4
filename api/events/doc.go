// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events defines the events that Sentinel publishes to adapters: CloudEvents 1.0 that name the
// resource to reconcile and never contain its desired state. An adapter that receives an event reads the
// resource from the fleet API.
package events
