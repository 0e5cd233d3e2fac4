// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig reads kubeconfigs that come from Secrets, which others may write: what in
// them would have the operator run programs or read files of its own is refused. It connects to
// their clusters within bounds, and writes kubeconfigs for others from them.
package kubeconfig
