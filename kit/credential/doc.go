// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credential reads values out of Secrets, and says which servers they may be sent to.
package credential
