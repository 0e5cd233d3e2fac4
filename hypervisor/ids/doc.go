// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ids reserves ids from the id range of a HypervisorCluster for its machines. Providers
// whose hypervisor identifies a machine by a number use it.
package ids
