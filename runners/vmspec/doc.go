// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmspec translates what users wrote into what the boundaries take: templates
// and claims into hypervisor.MachineSpec, cloudinit.Input and guest.Config. It is pure.
package vmspec
