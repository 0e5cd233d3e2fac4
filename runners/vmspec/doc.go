// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmspec converts templates and claims into the parts of a hypervisor.MachineSpec, cloudinit.Input
// and guest.Config, and derives the codes with which machines authenticate to the operator. It makes no API
// calls. Only OpenProgram and RenderSeed read files.
package vmspec
