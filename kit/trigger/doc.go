// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trigger enqueues reconcile requests for events from outside the Kubernetes API, for example
// when a hypervisor task ends, a machine reports, a CI platform responds, or work on a host is complete.
package trigger
