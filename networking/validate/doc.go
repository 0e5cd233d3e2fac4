// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validate checks machines over the network, as their clients see them. It checks whether the name
// of a machine resolves to its address and the address to the name, whether the machine replies to a ping,
// and whether it has an SSH server. It writes the result into the condition NetworkValidated of the
// MachineClaim or the KubevirtMachine. No job waits for this condition.
//
// The checks run when a machine is Ready. After a failure they run again with back-off until they pass.
// After that they run again at the configured interval. The package sends ICMP through
// golang.org/x/net/icmp, which needs no privilege if the kernel allows the operator's group to send ICMP
// (net.ipv4.ping_group_range).
package validate
