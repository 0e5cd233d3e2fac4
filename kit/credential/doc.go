// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credential reads values from Secrets and checks to which servers the values may be sent.
package credential
