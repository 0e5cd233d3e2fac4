// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package linux is the kind LinuxMachine: an existing Linux host that is reached at the address in
// its spec. Package hosts/plan/linux renders its plan. Provisioning and releasing such a host
// change nothing on it.
package linux
