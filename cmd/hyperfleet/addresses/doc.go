// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package addresses has the command that tells of pools of addresses who has which address,
// since when, and what is free. It reads what the operator would read after a restart, and asks
// the operator nothing.
package addresses
