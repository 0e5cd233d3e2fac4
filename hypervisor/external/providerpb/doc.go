// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package providerpb has the protocol between the operator and hypervisor providers that are
// programs of their own. provider.proto defines it. The other files convert its messages to the
// types of package hypervisor and back, and nothing else knows both.
package providerpb
