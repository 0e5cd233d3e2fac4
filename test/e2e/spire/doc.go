// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire holds the whole way of an identity, from a queued job to nothing left: the
// operator, a real SPIRE server, a real Vault, and machines that run the real
// bootstrap-service with a real spire-agent. The hypervisor is simulated: its machines are
// processes of this one, below folders of their own. `make e2e-spire` runs it.
package spire
