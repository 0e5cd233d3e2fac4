// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package validate looks at machines from outside, as others do: whether their names lead
// to them and their addresses back to their names, and whether they answer a ping and have
// an SSH server. What it finds is the condition NetworkValidated of the MachineClaim or the
// KubevirtMachine and nothing else: no job ever waits for it.
//
// Look-ups and tests are made when a machine is Ready, again with growing pauses until
// they have passed, and from then on in the interval that is set. ICMP is spoken through
// golang.org/x/net/icmp, which needs no privilege where the kernel lets the operator's
// group send it (net.ipv4.ping_group_range).
package validate
