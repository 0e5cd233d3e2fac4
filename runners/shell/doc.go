// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shell gives users of Kubernetes a shell and the live console of a machine, without credentials of the
// hypervisor (docs/adr/0069-shells-through-the-operator.md).
package shell
