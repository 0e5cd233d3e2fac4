// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest defines the interface between the operator and the bootstrap service inside a machine:
// the file /etc/hyperfleet/runner-config.json, and the phases that the service reports.
package guest
