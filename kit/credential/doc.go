// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credential reads values from Secrets and checks to which servers the values may be sent.
//
// It also reads kubeconfigs from Secrets, which users other than administrators may write. It rejects
// kubeconfigs that would make the operator run programs or read its own files, connects to the
// clusters with limits, and writes new kubeconfigs for other programs.
package credential
