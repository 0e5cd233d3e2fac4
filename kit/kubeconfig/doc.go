// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig reads kubeconfigs from Secrets, which users other than administrators may
// write. It rejects kubeconfigs that would make the operator run programs or read its own files.
// The package also connects to the clusters with limits, and writes new kubeconfigs for other
// programs.
package kubeconfig
